"""All of it in order: the backend's modules, the checks that run them, a sample of mutants, each one's fate.

Knows: the order, and which processes have what in memory.
Does not know: a terminal (`cli.mutate`), or how a record looks (`report`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import attrs
from attrs import define, field, frozen

from areal_conformance.check import Check
from areal_conformance.mutate.cover import Coverage, Made, measure
from areal_conformance.mutate.edits import mutants_from, read_edits
from areal_conformance.mutate.mutants import Mutant, diff, mutants_of, sampled
from areal_conformance.mutate.process import Zygote
from areal_conformance.mutate.record import Record, Row
from areal_conformance.mutate.scope import Scope, named, scope_of
from areal_conformance.mutate.source import Source
from areal_conformance.mutate.subject import Told, checks_for, target_of
from areal_conformance.mutate.triage import NAME, Triage, Verdict, read_triage, stale
from areal_conformance.mutate.trial import Fate, Trial, attempt, control
from areal_conformance.session import skipped
from areal_conformance.target import Target
from areal_core.contract.errors import CapabilityError, ConfigError

_LOAD = "areal_conformance.mutate.subject:load"


@frozen(kw_only=True)
class Wanted:
    """What was asked for."""

    subject: Told
    level: int = 4
    sample: int | None = None
    seed: int = 0
    also: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    edits: tuple[Path, ...] = ()
    """Files of edits to try in place of what operators make."""
    triage: tuple[Path, ...] = ()
    spend_s: float = math.inf
    """Of each mutant ask checks that take so long together, as long as the backend as it is takes."""
    gaps: bool = False
    """Only mutants that a triage calls a gap."""
    skip_excused: bool = False
    """Do not try those that a triage excuses: they live as a rule, and what lives takes longest."""
    command: str = ""


class Listener(Protocol):
    """Hears how it goes."""

    def said(self, text: str) -> None:
        """Something is about to take a while."""

    def made(self, made: Made, number: int, total: int) -> None:
        """A check was made on the backend as it is."""

    def tried(self, row: Row, number: int, total: int) -> None:
        """A mutant was tried."""


def can_fork() -> None:
    """Refuse a platform without fork.

    Raises:
        CapabilityError: there is none.
    """
    if not hasattr(os, "fork"):
        raise CapabilityError(
            "mutants cannot be made here",
            why="every mutant is tried in a fork of a warm process, and this platform has no fork",
            fix="run it on Linux or macOS, or in WSL",
        )


@define
class _Work:
    """What is known so far."""

    wanted: Wanted
    target: Target
    listener: Listener
    sources: dict[str, Source] = field(factory=dict)
    coverage: Coverage = field(factory=Coverage)
    loaded: list[str] = field(factory=list)
    """Modules that the checks have in memory."""


def run(wanted: Wanted, listener: Listener) -> Record:
    """Make and try mutants; a KeyboardInterrupt after the first one gives the record of those tried so far.

    Raises:
        ArealError: no such backend, no source, nothing to try, no fork; before any process is started.
        HarnessError: the warm process broke.
    """
    can_fork()
    began = time.perf_counter()
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    target = target_of(wanted.subject)
    edits = read_edits(wanted.edits)
    scope = scope_of(target, wanted.also, wanted.modules or tuple(sorted({edit.module for edit in edits})))
    chosen = _chosen(target, wanted)
    work = _Work(wanted, target, listener)
    work.sources = {name: Source.read(name, path) for name, path in scope.modules.items()}
    written = mutants_from(edits, work.sources)
    _cover(work, scope, chosen)
    made = [mutant for source in work.sources.values() for mutant in mutants_of(source)]
    every = {mutant.key for mutant in made}
    mutants = written or [mutant for mutant in made if not wanted.operators or mutant.key.operator in wanted.operators]
    triage = read_triage([*_triage_files(work.sources.values()), *wanted.triage])
    if wanted.gaps:
        mutants = [one for one in mutants if one.key in triage and triage[one.key].verdict is Verdict.GAP]
    drawn = sampled(mutants, wanted.sample, wanted.seed)
    record = Record(
        role=target.role,
        name=target.name,
        origin=target.origin,
        command=wanted.command,
        started=started,
        seed=wanted.seed,
        asked=wanted.sample,
        population={
            source.shown: sum(mutant.module == name for mutant in mutants) for name, source in work.sources.items()
        },
        planned=len(drawn),
        stale=tuple(stale(triage, every, {source.shown for source in work.sources.values()})),
    )
    rows: list[Row] = []
    try:
        for row in _trials(work, drawn, triage):
            rows.append(row)
            listener.tried(row, len(rows), len(drawn))
    except KeyboardInterrupt:
        record = attrs.evolve(record, interrupted=True)
    unrun = {source.shown: work.coverage.unrun(source) for source in work.sources.values()}
    checks = {key: made.outcome for key, made in work.coverage.made.items()}
    return attrs.evolve(
        record, rows=tuple(rows), checks=checks, unrun=unrun, seconds=round(time.perf_counter() - began, 1)
    )


def _chosen(target: Target, wanted: Wanted) -> list[str]:
    """Return the checks that this target must pass, at the levels asked for.

    Static ones are left out: they read the source as it is on disk.
    """

    def fits(check: Check) -> bool:
        named = not wanted.checks or any(fnmatch.fnmatchcase(check.id, pattern) for pattern in wanted.checks)
        return check.role == target.role and named and check.level <= wanted.level and skipped(check, target) is None

    chosen = [key for key, check in checks_for(wanted.subject).items() if fits(check)]
    if not chosen:
        raise ConfigError(
            f"no check of {target.role} {target.name} is left",
            why=f"none fits --level {wanted.level} --check {' '.join(wanted.checks) or '*'}",
            fix="areal conformance list",
        )
    return chosen


def _cover(work: _Work, scope: Scope, checks: Sequence[str]) -> None:
    """Make the checks once, and add modules whose functions they run and nothing imports."""
    listener, subject = work.listener, work.wanted.subject
    trace = [scope.root] if scope.root else []
    trace += [path for path in scope.modules.values() if not scope.root or not path.is_relative_to(scope.root)]
    listener.said(f"making {len(checks)} checks on the backend as it is, to see which lines each runs")
    with _open(Zygote((), (), _LOAD, subject=dict(subject))) as zygote:
        numbers = iter(range(1, len(checks) + 1))
        work.coverage = measure(
            zygote, subject, checks, trace, lambda made: listener.made(made, next(numbers), len(checks))
        )
        work.loaded = zygote.modules
    for path in sorted(work.coverage.files()):
        name = named(scope, path)
        if name is not None and work.coverage.uses(source := Source.read(name, path)):
            work.sources[name] = source
    work.coverage.in_memory = {work.sources[name].path for name in work.loaded if name in work.sources}


def _trials(work: _Work, drawn: Sequence[Mutant], triage: Triage) -> Iterator[Row]:
    """Try mutants in a zygote that has libraries in memory, but nothing of the suite, its kits or the backend."""
    cold = {"areal_conformance", *(name.partition(".")[0] for name in work.sources)}
    cold |= {name.partition(".")[0] for name in work.loaded if name.startswith("areal_")}
    warm = [name for name in work.loaded if name.partition(".")[0] not in cold and not name.startswith("_")]
    subject = work.wanted.subject
    with _open(Zygote(warm, cold)) as zygote:
        unfit = control(zygote, subject, next(iter(work.sources.values())), work.coverage)
        for number, made in enumerate(unfit, 1):
            work.listener.made(made, number, len(unfit))
        for mutant in drawn:
            source, said = work.sources[mutant.module], triage.get(mutant.key)
            old, new = diff(source, mutant)
            if work.wanted.skip_excused and said is not None and said.excused:
                trial = Trial(fate=Fate.LEFT)
            else:
                trial = attempt(zygote, subject, source, mutant, work.coverage, work.wanted.spend_s)
            yield Row(
                key=mutant.key,
                line=mutant.line,
                old=old,
                new=new,
                trial=trial,
                why=mutant.why,
                said=said,
            )


@contextlib.contextmanager
def _open(zygote: Zygote) -> Iterator[Zygote]:
    try:
        yield zygote
    finally:
        zygote.close()


def _triage_files(sources: Iterator[Source] | Any) -> list[Path]:
    # Any: a view of a dict's values.
    """Return where each source's package keeps its triage: in its topmost folder; beside a file of its own."""
    found = []
    for source in sources:
        depth = source.name.count(".") + (source.path.stem == "__init__")
        found.append(source.path.parents[max(depth - 1, 0)] / NAME)
    return list(dict.fromkeys(found))
