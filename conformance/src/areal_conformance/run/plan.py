"""A run before its first check: target, profile, ledger, and the record with every row still open.

Whatever is wrong with what was asked comes out here.

Knows: the order in which a run is prepared, and how results close the record.
Does not know: how a check is made, or who drives it (`pytest_plugin`, `cli.run`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from areal_conformance.check import Check, Level
from areal_conformance.run.asked import LEVEL, Asked
from areal_conformance.run.bounds import bounded, bounds_asked, bounds_told, figures_of
from areal_conformance.run.chosen import chosen, failed_in
from areal_conformance.run.facts import claims_of, facts_of, families_of
from areal_conformance.run.ledger import Ledger, read_ledger
from areal_conformance.run.profile import make_profile, version_of
from areal_conformance.run.record import Declared, Record, Row, Subject, Widened
from areal_conformance.run.refusals import refuse_absent, refuse_adapter
from areal_conformance.run.suite import Suite
from areal_conformance.run.verdict import judge, standings
from areal_conformance.target import Target
from areal_core.contract.errors import ConfigError
from areal_core.contract.version import CONTRACT, accepts, range_accepted
from areal_core.plugins.devices import device_named

LEDGER = "conformance.toml"
MOST_JOBS = 4
"""Processes that make checks at once where nobody says how many."""


@frozen(kw_only=True)
class Plan:
    """What will be done."""

    target: Target
    checks: tuple[Check, ...]
    """To be made, in order: all of the profile, or those asked for."""
    jobs: int
    """Processes that make them at once, each its next one."""
    ledger: Ledger
    record: Record


def make_plan(asked: Asked, suite: Suite, *, now: datetime, command: str) -> Plan:
    """Prepare a run.

    Raises:
        ArealError: the target, its adapter, the ledger or a check asked for is not what it must be.
    """
    locator = suite.locator_of(asked)
    refuse_absent(asked, locator)
    target = suite.locate(locator)
    role = target.role
    every = tuple(suite.checks_of(role))
    figures = figures_of(every, target)
    refuse_adapter(target, {*suite.inventory.checks, *(check.id for check in every)}, figures)
    bounds = bounds_asked(asked, target, figures)
    target = bounded(target, bounds)
    contract = _contract(asked.contract, role)
    profile = make_profile(
        role, every, suite.inventory, level=asked.level, ranks=target.locator.ranks, contract=contract
    )
    ledger = _ledger(asked, target, suite, every, now.date())
    record = Record(
        **_facts(target, asked.contract),
        subject=Subject(
            role=role,
            name=target.name,
            device=target.locator.device,
            ranks=target.locator.ranks,
            level=asked.level,
            origin=target.origin,
            mutant=target.locator.mutant,
            imports=tuple(Path(path).name for path in target.locator.imports),
            contract=".".join(map(str, target.manifest.contract)) if target.manifest else "",
            stand_ins=device_named(target.registry, target.locator.device).stand_in,
            patience=asked.patience,
        ),
        left_out=profile.left_out,
        claims=claims_of(target),
        families=(families := families_of(target)),
        traits=target.adapter.traits if families else (),
        tolerances=tuple(
            Widened(check=key, atol=found.atol, rtol=found.rtol, why=found.why)
            for key, found in sorted(target.adapter.tolerances.items())
        ),
        ledger=tuple(
            Declared(**{field.name: str(getattr(known, field.name)) for field in attrs.fields(Declared)})
            for known in ledger.entries.values()
        ),
        bounds=bounds_told(target, bounds, asked.bounds) if asked.level >= Level.NUMBERS else (),
        checks=profile.rows,
        notes=profile.notes,
        started=now.isoformat(timespec="seconds"),
        command=command,
    )
    only = asked.only
    if asked.failed_in:
        only += failed_in(Path(asked.failed_in), role=role, name=target.name, device=target.locator.device)
    return Plan(
        target=target,
        checks=chosen(only, profile.checks, every),
        jobs=asked.jobs or jobs_for(asked, target),
        ledger=ledger,
        record=record,
    )


def closed(record: Record, rows: Iterable[Row], seconds: float, notes: Iterable[str] = ()) -> Record:
    """Return the record with what is known put in, and judged; rows that are not given stay open."""
    known = {row.id: row for row in rows}
    filled = tuple(known.get(row.id, row) for row in record.checks)
    found = judge(filled, record.left_out)
    return attrs.evolve(
        record,
        checks=filled,
        verdict=str(found.verdict),
        line=found.line,
        standings=standings(record.subject.role, filled, {one.key for one in record.claims if one.counts}),
        seconds=round(seconds, 3),
        notes=(*record.notes, *notes),
    )


def jobs_for(asked: Asked, target: Target) -> int:
    """Return how many processes fit: one where a device's memory, a slow start or figures of level 5 allow no more."""
    sides = list(target.parts.values()) or [target]
    if target.torch_type != "cpu" or asked.level > LEVEL or any(side.adapter.slow_start for side in sides):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS)


def _contract(text: str, role: str) -> tuple[int, int] | None:
    """Return the version of the contract asked for.

    Raises:
        ConfigError: it is no version, or none this core speaks.
    """
    if not text:
        return None
    for one in _roles(role):
        try:
            spoken = accepts(one, version_of(text))
        except ValueError:
            spoken = False
        if not spoken:
            raise ConfigError(
                f"--contract {text} is no version of the {one} contract that can be checked here",
                why=f"this core speaks {range_accepted(one)}",
                fix=f"--contract {'.'.join(map(str, CONTRACT[one]))}, or leave it out",
            )
    return version_of(text)


def _roles(role: str) -> tuple[str, ...]:
    return ("train", "infer") if role == "pair" else (role,)


def _facts(target: Target, contract: str) -> dict[str, Any]:
    """Return the facts of a run; the contract of its role is the one it was held to. Any: several types."""
    facts = facts_of(target)
    if contract:
        facts["contract"] = {**facts["contract"], **dict.fromkeys(_roles(target.role), contract)}
    return facts


def ledger_path(target: Target) -> Path | None:
    """Return the ledger that comes with a plugin: `conformance.toml` in the package its factory lies in.

    Not the current folder's: whose failures a file there declares would be chance.
    """
    if target.manifest is None:
        return None
    package = target.manifest.factory.partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / LEDGER
        if path.is_file():
            return path
    return None


def _ledger(asked: Asked, target: Target, suite: Suite, checks: Iterable[Check], today: date) -> Ledger:
    path = Path(asked.ledger) if asked.ledger else ledger_path(target)
    if path is None:
        return Ledger()
    return read_ledger(
        path,
        today=today,
        ids={*suite.inventory.checks, *(check.id for check in checks)},
        retired=suite.inventory.retired,
        device=target.locator.device,
        backend=target.name,
    )
