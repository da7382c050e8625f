"""All of a job or nothing: how submitting fails or is refused, and that nothing is left of what failed.

Knows: every way a gang can fail to start, and how each ability that may be unclaimed is asked for.
Does not know: what workers do once they run.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

from areal_conformance.benches.scheduler import SPEC, SchedulerBench, ask, told
from areal_conformance.check import Level, Row, check, family
from areal_conformance.checks.scheduler.anchors import CANCEL, JOB, SUBMIT
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, ConfigError, ResourceError, WorkerDied, WorkerTimeout
from areal_core.contract.scheduler import Job, Scheduler, Share, Together

_UNFIT: dict[str, dict[str, Any]] = {"no workers": {"num_workers": 0}, "an odd kind": {"engine_role": "juggler"}}
_TWO_OF_THREE = """#!/bin/sh
echo $$ >> {folder}/pids
if mkdir {folder}/one 2>/dev/null || mkdir {folder}/two 2>/dev/null; then exec "{python}" "$@"; fi
echo "this one has no luck" >&2
exit 7
"""
_ONE_OF_MANY_ENDS = """#!/bin/sh
echo $$ >> {folder}/pids
if mkdir {folder}/first 2>/dev/null; then echo "this one has no luck" >&2; exit 7; fi
exec sleep 600
"""
_NEVER_ANSWERS = """#!/bin/sh
echo $$ >> {folder}/pids
echo "still thinking"
exec sleep 600
"""
_ASKED: dict[str, dict[str, Any]] = {
    "hosts.one": {"num_hosts": 1},
    "hosts.spread": {"num_hosts": 2},
    "hosts.named": {"hosts": ("localhost",)},
    "memory": {"memory": 2**20},
    "image": {"image": "registry.invalid/areal:1"},
    "together.host": {"together_with": Together(role="first")},
    "together.devices": {"together_with": Together(role="first", share=Share.DEVICES)},
}
"""Ability -> fields of a job that asks for it."""


@check("scheduler.gang.all_or_nothing", level=Level.SINGLE, law=10, spec=SUBMIT)
async def all_or_nothing(bench: SchedulerBench) -> None:
    """When one worker of three ends while starting, the others are gone when submit raises, and the role is free."""
    python = _interpreter(bench.folder, _TWO_OF_THREE)
    async with bench.scheduler() as scheduler:
        work = scheduler.submit(bench.job("trio", num_workers=3, python=python))
        await bench.raised(ArealError, work, "submit", within_s=60.0)
        pids = _pids(bench.folder)
        expect(len(pids) == 3, f"{len(pids)} of 3 workers were started")
        await bench.gone(pids, "submit raised because one worker of three could not start")
        polled = [str(status.state) for status in scheduler.poll("trio")]
        expect(set(polled) <= {"ended"}, f"poll after a failed submit tells {polled}")
        (worker,) = await bench.start(scheduler, bench.job("trio"))
        expect((await ask(worker, "echo", value=5))["value"] == 5, "a role whose start failed cannot be used again")


@check("scheduler.gang.names_the_dead", level=Level.SINGLE, law=9, spec=SUBMIT)
async def names_the_dead(bench: SchedulerBench) -> None:
    """A worker that ends while others start gives WorkerDied at once: the worker, its exit code, its last words."""
    for script in (_TWO_OF_THREE, _ONE_OF_MANY_ENDS):
        python = _interpreter(bench.folder, script)
        async with bench.scheduler() as scheduler:
            work = scheduler.submit(bench.job("trio", num_workers=3, python=python))
            await bench.raised(WorkerDied, work, "submit", "trio/", "7", "this one has no luck", within_s=20.0)
            await bench.gone(_pids(bench.folder), "submit raised because one worker of three ended")


@check("scheduler.gang.start_deadline", level=Level.SINGLE, law=9, spec=SUBMIT)
async def start_deadline(bench: SchedulerBench) -> None:
    """Workers that never answer end submit at `start_timeout_s`, by name, and they are ended."""
    python = _interpreter(bench.folder, _NEVER_ANSWERS)
    async with bench.scheduler(start_timeout_s=0.5) as scheduler:
        work = scheduler.submit(bench.job("late", num_workers=2, python=python))
        await bench.raised(WorkerTimeout, work, "submit", "late/")
        await bench.gone(_pids(bench.folder), "submit gave its workers up")


@check("scheduler.gang.no_interpreter", level=Level.SINGLE, law=8, spec=SUBMIT)
async def no_interpreter(bench: SchedulerBench) -> None:
    """An interpreter that is not there is refused by its name, and nothing is started."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        for python in ("/no/such/python", "no-such-python"):
            work = scheduler.submit(bench.job(num_workers=2, python=python))
            await bench.raised(ResourceError, work, "submit", python)
        await bench.gone(bench.processes() - before, "after an interpreter that is not there")


@check("scheduler.gang.cancelled", level=Level.SINGLE, law=10, spec=SUBMIT)
async def cancelled(bench: SchedulerBench) -> None:
    """Cancelling submit ends what it started, and the role is free."""
    python = _interpreter(bench.folder, _NEVER_ANSWERS)
    async with bench.scheduler() as scheduler:
        submitting = bench.doing(_submit(scheduler, bench.job("given up", num_workers=2, python=python)))
        await bench.until(partial(_both_or, submitting, bench.folder), "two workers are started")
        submitting.cancel()
        await bench.soon(asyncio.wait((submitting,)), "a cancelled submit")
        expect(submitting.cancelled(), "a cancelled submit does not end with CancelledError")
        await bench.gone(_pids(bench.folder), "submit was cancelled")
        (worker,) = await bench.start(scheduler, bench.job("given up"))
        expect((await ask(worker, "echo", value=5))["value"] == 5, "a role whose start was cancelled is not free")


@check("scheduler.gang.ended", level=Level.SINGLE, law=10, spec=CANCEL)
async def ended(bench: SchedulerBench) -> None:
    """Workers that have not answered yet are told as starting; cancel and close end them, and their submit raises."""
    for how in ("cancel", "close"):
        folder = bench.folder / how
        folder.mkdir()
        python = _interpreter(folder, _NEVER_ANSWERS)
        async with bench.scheduler() as scheduler:
            submitting = bench.doing(_submit(scheduler, bench.job("early", num_workers=2, python=python)))
            await bench.until(partial(_both_or, submitting, folder), "two workers are started")
            told = [str(status.state) for status in scheduler.poll("early")]
            expect(told == ["starting"] * 2, f"two workers that have not answered yet are told as {told}")
            await bench.soon(scheduler.cancel("early") if how == "cancel" else scheduler.close(), how)
            await bench.gone(_pids(folder), f"after {how}, workers that had not answered yet")
            await bench.raised(ArealError, submitting, f"submit of workers that {how} ended")


def _both_or(submitting: asyncio.Task[Any], folder: Path) -> bool:  # Any: the workers
    return len(_pids(folder)) == 2 or submitting.done()


@check("scheduler.submit.twice", level=Level.SINGLE, law=10, spec=SUBMIT)
async def twice(bench: SchedulerBench) -> None:
    """A role that runs is refused with ConfigError; the first job goes on, and no process is started."""
    async with bench.scheduler() as scheduler:
        first = await bench.start(scheduler, bench.job("one", num_workers=2))
        pids, before = [s.pid for s in scheduler.poll("one")], bench.processes()
        for count in (1, 2):
            work = scheduler.submit(bench.job("one", num_workers=count))
            await bench.raised(ConfigError, work, "a second submit", "one")
        await bench.gone(bench.processes() - before, "after a second submit that was refused")
        kept = [s.pid for s in scheduler.poll("one")] == pids
        expect(kept, "the first job's workers are others after a second submit")
        for worker in first:
            expect((await ask(worker, "echo", value=5))["value"] == 5, f"{worker.id} was disturbed by a second submit")


@check("scheduler.submit.twice_at_once", level=Level.SINGLE, law=10, spec=SUBMIT)
async def twice_at_once(bench: SchedulerBench) -> None:
    """Of two submits of one role at the same time one is refused; the other's workers are the only ones."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        job = bench.job("one")
        both = asyncio.gather(_submit(scheduler, job), _submit(scheduler, job), return_exceptions=True)
        ends = await bench.soon(both, "submit", 60.0)
        refused = [end for end in ends if isinstance(end, BaseException)]
        expect(len(refused) == 1, f"two submits of one role at once ended with {ends}")
        expect(isinstance(refused[0], ConfigError), f"the second raised {type(refused[0]).__name__}: {refused[0]}")
        (workers,) = [end for end in ends if not isinstance(end, BaseException)]
        await workers[0].call("start", SPEC, timeout_s=30)
        fact = await ask(workers[0], "facts")
        expect([s.pid for s in scheduler.poll("one")] == [fact["pid"]], "poll tells of other workers than submit gave")
        await scheduler.cancel("one")
        await bench.gone(bench.processes() - before, "after the role was cancelled", 3.0)


@check("scheduler.submit.unfit", level=Level.SINGLE, law=8, spec=JOB)
async def unfit(bench: SchedulerBench) -> None:
    """A job of no workers, or of a kind of engine nobody hosts, is refused and leaves its role free."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        for what, fields in _UNFIT.items():
            error = await bench.raised(ArealError, scheduler.submit(bench.job("odd", **fields)), f"a job of {what}")
            expect(bool(error.why or error.fix), f"a job of {what} is refused without a reason: {told(error)}")
        await bench.gone(bench.processes() - before, "after jobs that were refused")
        (worker,) = await bench.start(scheduler, bench.job("odd"))
        expect((await ask(worker, "echo", value=5))["value"] == 5, "a role that was refused once cannot be used")


@check("scheduler.submit.wrong_backend", level=Level.SINGLE, law=8, spec=JOB)
async def wrong_backend(bench: SchedulerBench) -> None:
    """A backend or a file that is not there is told by name, at the latest when the engine starts."""
    cases: dict[str, dict[str, Any]] = {
        "no_such_backend": {"backend": "no_such_backend"},
        "no_such_file": {"imports": (str(bench.folder / "no_such_file.py"),)},
    }
    async with bench.scheduler() as scheduler:
        for name, fields in cases.items():
            work = bench.start(scheduler, bench.job(name, **fields))
            error = await bench.raised(ArealError, work, f"a job with {name}", within_s=60.0)
            text = told(error).replace(f"{name}/0", "")
            expect(name in text, f"the error does not name {name!r}: {told(error)}")


@check("scheduler.submit.engine_fails", level=Level.SINGLE, law=5, spec=SUBMIT)
async def engine_fails(bench: SchedulerBench) -> None:
    """An engine that raises while it is built or started is told with its own words; its worker lives on."""
    async with bench.scheduler() as scheduler:
        for where, words in (("build", "fail while being built"), ("start", "fail while starting")):
            work = bench.start(scheduler, bench.job(where), fail=where)
            await bench.raised(ArealError, work, f"an engine that fails in its {where}", words, within_s=60.0)
            expect(str(bench.status(scheduler, where).state) == "running", "its worker does not run any more")


@family(
    "scheduler.refuse.{word}",
    {word.replace(".", "_"): Row(word, (word, asked), unless=(word,)) for word, asked in _ASKED.items()},
    level=Level.SINGLE,
    law=8,
    spec=JOB,
    since=(1, 1),
)
async def refused(bench: SchedulerBench, case: tuple[str, dict[str, Any]]) -> None:
    """A job that asks for `{...}` is refused where it is not claimed; ignored, it would run elsewhere."""
    claim, fields = case
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job("first"))
        before = bench.processes()
        job = bench.job("second", num_workers=2, **fields)
        await bench.arefuses(claim, lambda: scheduler.submit(job))
        await bench.gone(bench.processes() - before, "after a job that was refused")


async def _submit(scheduler: Scheduler, job: Job) -> Any:  # Any: the workers
    return await scheduler.submit(job)


def _interpreter(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(script.format(folder=folder, python=sys.executable))
    path.chmod(0o755)
    return str(path)


def _pids(folder: Path) -> set[int]:
    told_by = folder / "pids"
    return set(map(int, told_by.read_text().split())) if told_by.exists() else set()
