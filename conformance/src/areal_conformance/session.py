"""Runs checks on one target, one after another, and says how each ended.

Knows: which checks apply, deadlines, which exception means which outcome; that a machine without a processor to spare
says nothing about a backend.
Does not know: ledgers, verdicts and reports, or pytest (`plugin` drives a session, and so does the self-test).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable
from functools import partial

from areal_conformance.benches import bench_for
from areal_conformance.benches.base import Bench
from areal_conformance.check import Check
from areal_conformance.checks import checks_of
from areal_conformance.deadline import Deadline, Late, of_time
from areal_conformance.laws import LAWS
from areal_conformance.outcome import (
    WORKS_UNCLAIMED,
    Exempt,
    HarnessError,
    Inconclusive,
    NotRefused,
    Outcome,
    Result,
    Violation,
)
from areal_conformance.runner import Hung, Runner
from areal_conformance.target import Target
from areal_core.contract.version import CONTRACT

CLOSE_S = 60.0
OVERLOADED = (
    "the machine was overloaded: what was waited for had no processor for much of the time. "
    "Run on a quieter machine, with --patience 4, or with --jobs 1 if this run was all there was"
)
BROKEN = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What a backend may raise and must not end the run with. Ctrl-C is the user's and is let through."""


def skipped(check: Check, target: Target) -> str | None:
    """Return why a check is not this target's business, or None if it must run."""
    missing = [key for key in check.requires if not target.claimed(key)]
    if missing:
        return f"not claimed: {', '.join(missing)}"
    present = [key for key in check.unless if target.claimed(key)]
    if present:
        return f"claimed, so there is nothing to refuse: {', '.join(present)}"
    if check.ranks > target.locator.ranks:
        return f"needs {check.ranks} ranks, the run has {target.locator.ranks}"
    if check.since > spoken(target.role):
        return f"since contract {check.since[0]}.{check.since[1]}"
    return None


def spoken(role: str) -> tuple[int, int]:
    """Return the contract version of this core for a role; a pair speaks what both engines speak."""
    return CONTRACT[role] if role in CONTRACT else min(CONTRACT["train"], CONTRACT["infer"])


class Session:
    """One target. Benches are made when first needed and live until `close`."""

    def __init__(self, target: Target, make_bench: Callable[[str, Target], Bench] = bench_for) -> None:
        self.target = target
        self._make_bench = make_bench
        self._runner = Runner()
        self._benches: dict[str, Bench] = {}
        self.poisoned = False
        """Whether a check missed a deadline: the call that did not return may still be in the way of the next one."""

    def run(self, check: Check) -> Result:
        """Make one check, and once more if it could not tell; never raises for what the backend or the check does."""
        why = skipped(check, self.target)
        if why is not None:
            return Result(check=check.id, outcome=Outcome.SKIP, message=why)
        began, notes = time.perf_counter(), list[str]()
        outcome, message, bench = self._attempt(check)
        if outcome is Outcome.INCONCLUSIVE and not self.poisoned:  # by chance: a pause of the machine, a fault too late
            first = message
            outcome, message, bench = self._attempt(check)
            if outcome is not Outcome.INCONCLUSIVE:
                notes.append(f"made once more, for at first it could not tell: {first}")
        return Result(
            check=check.id,
            outcome=outcome,
            message=message,
            seconds=time.perf_counter() - began,
            notes=notes + (bench.notes if bench else []),
            numbers=dict(bench.numbers) if bench else {},
        )

    def close(self) -> None:
        """End the benches and the thread. Idempotent."""
        benches, self._benches = self._benches, {}
        for bench in benches.values():
            self._end_bench(bench)
        self._runner.close()

    def _attempt(self, check: Check) -> tuple[Outcome, str, Bench | None]:
        deadline = self._deadline(check.deadline_s)
        try:
            bench = self._bench(check.role)
            bench.begin(check)
        except Exception as error:
            return Outcome.ERROR, f"the bench could not be set up: {_told(error)}", None
        try:
            self._runner.run(partial(check.body, bench), deadline)
            bench.judge_figures()
            outcome, message = Outcome.PASS, ""
        except Hung as error:
            self._abandon()
            return *_missed(_law(9, f"{check.id} {error}"), starved=deadline.cut_short), bench
        except NotRefused as error:
            outcome, message = self._works_unclaimed(check, error.claim, bench)
        except BROKEN as error:
            outcome, message = _judge(check, error, deadline, bench)
            self.poisoned |= any(of_time(error))
        return self._after(check, bench, outcome, message)

    def _deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds * self.target.adapter.patience)

    def _after(self, check: Check, bench: Bench, outcome: Outcome, message: str) -> tuple[Outcome, str, Bench]:
        """Let the check's own things go; a target that cannot let them go fails the check."""
        deadline = self._deadline(CLOSE_S)
        try:
            self._runner.run(lambda: bench.end(passed=outcome is Outcome.PASS), deadline)
        except Hung as error:
            self._abandon()
            if outcome is Outcome.PASS:
                told = _law(9, f"closing after {check.id}: {error}")
                outcome, message = _missed(told, starved=deadline.cut_short)
        except BROKEN as error:
            self._abandon()
            if outcome is Outcome.PASS:
                outcome, message = Outcome.FAIL, _law(10, f"closing after {check.id}: {_told(error)}")
        return outcome, message, bench

    def _works_unclaimed(self, check: Check, claim: str, bench: Bench) -> tuple[Outcome, str]:
        """An ability was not refused: noted if every check of it passes, else the refusal has failed."""
        notes = list(bench.notes)
        positive = [
            other
            for other in checks_of(self.target.role)
            if claim in other.requires
            and other.role == check.role
            and other.ranks <= self.target.locator.ranks
            and all(key == claim or self.target.claimed(key) for key in other.requires)
        ]
        num_passed = 0
        for other in positive:
            bench.begin(other)
            deadline = self._deadline(other.deadline_s)
            try:
                self._runner.run(partial(other.body, bench), deadline)
                num_passed += 1
            except Hung as error:
                self._abandon()
                told = _law(8, f"{claim!r} is not claimed, was not refused, and hangs: {error}")
                return _missed(told, starved=deadline.cut_short)
            except (Inconclusive, Exempt):
                pass
            except BROKEN as error:
                why = f"{claim!r} is not claimed and was not refused; {other.id} then found: {_told(error)}"
                return Outcome.FAIL, _law(8, why)
            self._runner.run(partial(bench.end, passed=True), self._deadline(CLOSE_S))
        if not num_passed:
            return Outcome.FAIL, _law(8, f"{claim!r} is not claimed and was not refused")
        bench.notes = [*notes, f"{claim!r} {WORKS_UNCLAIMED}"]
        return Outcome.PASS, ""

    def _bench(self, role: str) -> Bench:
        if role not in self._benches:
            bench = self._make_bench(role, self.target)
            bench.find = partial(_found, bench)
            self._benches[role] = bench
        return self._benches[role]

    def _abandon(self) -> None:
        """Give up the runner and everything that lives in it; the next check starts afresh."""
        benches, self._benches = self._benches, {}
        for bench in benches.values():
            self._end_bench(bench)
        self.poisoned |= self._runner.hung
        if not self._runner.hung:
            self._runner.close()
        self._runner = Runner()

    def _end_bench(self, bench: Bench) -> None:
        if not self._runner.hung:
            with contextlib.suppress(*BROKEN):  # what a broken target does when let go, checks of close have judged
                self._runner.run(bench.aclose, Deadline(CLOSE_S))
        bench.close()


def _judge(check: Check, error: BaseException, deadline: Deadline, bench: Bench) -> tuple[Outcome, str]:
    if isinstance(error, Exempt):
        return Outcome.SKIP, str(error)
    if isinstance(error, Inconclusive):
        return Outcome.INCONCLUSIVE, str(error)
    if isinstance(error, HarnessError):
        return Outcome.ERROR, str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return _missed(_law(9, f"{check.id} did not end within {deadline.limit_s:g} s"), starved=deadline.cut_short)
    if isinstance(error, Violation):
        told = _law(check.law if error.law is None else error.law, str(error))
    else:
        told = _law(check.law, f"the backend raised {_told(error)}")
    return _missed(told, starved=_starved(error, deadline, bench))


def _missed(told: str, *, starved: bool) -> tuple[Outcome, str]:
    """Return what a failure amounts to: nothing, where others had the processors that it would have taken to pass."""
    return (Outcome.INCONCLUSIVE, f"{OVERLOADED}\n{told}") if starved else (Outcome.FAIL, told)


def _starved(error: BaseException, deadline: Deadline, bench: Bench) -> bool:
    """Whether a failure is that of a busy machine: a deadline of ours cut short, or a limit of the backend's own.

    Not a limit by a clock that the check steps: no machine is too busy for that.
    """
    own = deadline.starved and not bench.steps_time
    return any(one.starved if isinstance(one, Late) else own for one in of_time(error))


def _found(bench: Bench, key: str) -> Check | None:
    """Return a check of the bench's role that its target must pass as it is now, None for another.

    Raises:
        HarnessError: there is no such check.
    """
    found = next((check for check in checks_of(bench.target.role) if check.id == key), None)
    if found is None:
        raise HarnessError(f"a variant of the adapter names {key!r}, which is no check of {bench.target.role}")
    return found if skipped(found, bench.target) is None else None


def _law(number: int, message: str) -> str:
    return f"law {number}: {LAWS[number]}\n{message}"


def _told(error: BaseException) -> str:
    """Return type and message of an exception, and the last steps that led to it, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {error}" + (f"\n  at {places}" if places else "")
