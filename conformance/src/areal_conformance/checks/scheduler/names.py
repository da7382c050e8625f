"""Roles whose names are alike, and jobs that follow one another: each is its own.

Knows: names that begin, end or hold one another, variables of a job, a start that fails late.
Does not know: how a scheduler files its workers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from areal_conformance.benches.base import SOON_S
from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CANCEL, SUBMIT
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError

_ALIKE = ("act", "act2", "actor", "act-x", "react")


@check("scheduler.cancel.namesakes", level=Level.SINGLE, law=10, spec=CANCEL)
async def cancel_namesakes(bench: SchedulerBench) -> None:
    """Cancel ends the role of that very name: roles whose names begin, end or go on like it stay at work."""
    async with bench.scheduler() as scheduler:
        started = await asyncio.gather(*(bench.start(scheduler, bench.job(role)) for role in _ALIKE))
        workers = {role: worker for role, (worker,) in zip(_ALIKE, started, strict=True)}
        pids = {role: bench.status(scheduler, role).pid or 0 for role in _ALIKE}
        for role in _ALIKE:
            told = [(status.id, status.role) for status in scheduler.poll(role)]
            expect(told == [(f"{role}/0", role)], f"poll({role!r}) tells of {told}")
        left = list(_ALIKE)
        # A part of every name, but no role.
        await bench.soon(scheduler.cancel("ac"), "cancel of a role that is not there")
        for ended in ("actor", "act"):
            await bench.soon(scheduler.cancel(ended), "cancel")
            left.remove(ended)
            await bench.gone([pids[ended]], f"after cancel of {ended!r}")
            for role in left:
                states = [str(status.state) for status in scheduler.poll(role)]
                expect(states == ["running"], f"after cancel of {ended!r}, the worker of {role!r} is told as {states}")
                given = await bench.soon(ask(workers[role], "echo", value=role), f"a call of {role!r}")
                expect(given == {"value": role}, f"after cancel of {ended!r}, {role!r} echoes {given}")


@check("scheduler.cancel.takes_env", level=Level.SINGLE, law=10, spec=CANCEL)
async def cancel_takes_env(bench: SchedulerBench) -> None:
    """What a job brought into its workers goes with them: no later job of another role or the same has it."""
    names = ["PROBE_MINE", "PROBE_SHARED"]
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job("first", env={"PROBE_MINE": "first", "PROBE_SHARED": "first"}))
        await bench.soon(scheduler.cancel("first"), "cancel")
        for role, env in (("second", {"PROBE_SHARED": "second"}), ("first", {})):
            (worker,) = await bench.start(scheduler, bench.job(role, env=env))
            seen = (await ask(worker, "facts", names=names))["env"]
            expect(seen == env, f"the job of {role!r} brought {env}, its worker has {seen}")


@check("scheduler.submit.late_failure", level=Level.FAULTS, law=10, spec=SUBMIT)
async def late_failure(bench: SchedulerBench) -> None:
    """Where the last worker of a job cannot be started, none of the others stays, and the role is free again."""
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job("gang", num_workers=3))
        logs = [Path(status.log_path) for status in scheduler.poll("gang")]
        await bench.soon(scheduler.cancel("gang"), "cancel")
        # A folder in the place of the last worker's log: nobody can write there, root neither.
        await asyncio.to_thread(_block, logs[-1])
        before = bench.children()
        try:
            await scheduler.submit(bench.job("gang", num_workers=3))
        except ArealError as error:
            expect(error.why or error.fix, f"the error says neither why nor what to do: {error}")
            left = bench.children() - before
            await bench.gone(left, "after a submit that failed at its last worker", SOON_S)
            expect(tuple(scheduler.poll("gang")) == (), f"poll tells of {scheduler.poll('gang')}")
        else:
            bench.notes.append("starts a worker though its log cannot be written")
            await bench.soon(scheduler.cancel("gang"), "cancel")
        await asyncio.to_thread(logs[-1].rmdir)
        workers = await bench.start(scheduler, bench.job("gang", num_workers=3))
        expect(len(workers) == 3, f"submitted again, the job has {len(workers)} workers")


def _block(log: Path) -> None:
    log.unlink(missing_ok=True)
    log.mkdir()
