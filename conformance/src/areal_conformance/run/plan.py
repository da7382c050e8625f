"""A run before its first check: target, profile, ledger, and the record with every row still open.

Whatever is wrong with what was asked comes out here.

Knows: the order in which a run is prepared, and how results close the record.
Does not know: how a check is made, or who drives it (`pytest_plugin`, `cli.run`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path

import attrs
from attrs import frozen

from areal_conformance.check import Check
from areal_conformance.run.asked import Asked
from areal_conformance.run.facts import claims_of, facts_of
from areal_conformance.run.ledger import Ledger, read_ledger
from areal_conformance.run.profile import Profile, make_profile
from areal_conformance.run.record import Declared, Record, Row, Subject, Widened
from areal_conformance.run.refusals import refuse_absent, refuse_adapter
from areal_conformance.run.suite import Suite
from areal_conformance.run.verdict import judge, standings
from areal_conformance.target import Target
from areal_core.contract.errors import ConfigError
from areal_core.plugins.devices import device_named

LEDGER = "conformance.toml"


@frozen(kw_only=True)
class Plan:
    """What will be done."""

    target: Target
    checks: tuple[Check, ...]
    """To be made, in order: all of the profile, or those asked for."""
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
    refuse_adapter(target, {*suite.inventory.checks, *(check.id for check in every)})
    profile = make_profile(role, every, suite.inventory, level=asked.level, ranks=target.locator.ranks)
    ledger = _ledger(asked, target, suite, every, now.date())
    record = Record(
        **facts_of(target),
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
        ),
        left_out=profile.left_out,
        claims=claims_of(target),
        tolerances=tuple(
            Widened(check=key, atol=found.atol, rtol=found.rtol, why=found.why)
            for key, found in sorted(target.adapter.tolerances.items())
        ),
        ledger=tuple(
            Declared(**{field.name: str(getattr(known, field.name)) for field in attrs.fields(Declared)})
            for known in ledger.entries.values()
        ),
        checks=profile.rows,
        notes=profile.notes,
        started=now.isoformat(timespec="seconds"),
        command=command,
    )
    return Plan(target=target, checks=_chosen(asked.only, profile, every), ledger=ledger, record=record)


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
        standings=standings(record.subject.role, filled),
        seconds=round(seconds, 3),
        notes=(*record.notes, *notes),
    )


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


def _chosen(only: tuple[str, ...], profile: Profile, every: Iterable[Check]) -> tuple[Check, ...]:
    if not only:
        return profile.checks
    known: Mapping[str, Check] = {check.id: check for check in profile.checks}
    outside: Mapping[str, Check] = {check.id: check for check in every if check.id not in known}
    for key in only:
        if key in outside:
            one = outside[key]
            raise ConfigError(
                f"{key!r} is not a check of this run",
                why=f"it is of level {int(one.level)} and takes {one.ranks} ranks or more",
                fix=f"--level {int(one.level)} --ranks {one.ranks}, or higher",
            )
        if key not in known:
            near = difflib.get_close_matches(key, {**known, **outside}, n=1)
            raise ConfigError(
                f"{key!r} is not a check of this run",
                why="it has another role, or does not exist",
                fix=f"did you mean {near[0]}?" if near else "areal conformance list",
            )
    return tuple(check for check in profile.checks if check.id in only)
