"""Ends: cancel and close leave nothing, and end the role of that very name, in whatever state they find the workers.

Knows: processes, ports, descriptors and files, before and after; names that hold one another; any order of calls.
Does not know: how a scheduler ends a worker, or files it.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import json
import re
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path

import attrs

from areal_conformance.benches.base import SOON_S
from areal_conformance.benches.process import descriptors, listening
from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CANCEL, CLOSE, SUBMIT
from areal_conformance.deadline import Late
from areal_conformance.machines.scheduler import explore
from areal_conformance.outcome import HarnessError, expect
from areal_conformance.probes.processes import Kill, Stop, alive, descendants
from areal_core.contract.errors import ArealError, StorageError
from areal_core.contract.scheduler import WorkerState


@check("scheduler.cancel.ends", level=Level.SINGLE, law=10, spec=CANCEL)
async def cancel_ends(bench: SchedulerBench) -> None:
    """When cancel returns, the workers are gone, and soon all they started; other roles are left alone."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("one", num_workers=2))
        (kept,) = await bench.start(scheduler, bench.job("two"))
        children = [await bench.spawn(worker) for worker in (*workers, kept)]
        pids = [status.pid for status in scheduler.poll("one") if status.pid]
        family = {pid for worker in pids for pid in descendants(worker)}
        expect(set(children[:2]) <= family, "the probe's children are not its descendants")
        await bench.soon(scheduler.cancel("one"), "cancel")
        await bench.gone(pids, "after cancel")
        await bench.gone(family, "children of workers after cancel", SOON_S)
        expect(tuple(scheduler.poll("one")) == (), f"poll after cancel tells {scheduler.poll('one')}")
        expect((await ask(kept, "echo", value=5))["value"] == 5, "cancel of one role hurt another")
        expect(alive(children[2]), "cancel of one role ended what another role's worker started")
        await bench.soon(scheduler.cancel("one"), "a second cancel")
        await bench.soon(scheduler.cancel("never there"), "cancel of an unknown role")
        await bench.soon(asyncio.gather(scheduler.cancel("two"), scheduler.cancel("two")), "two cancels at once")
        await bench.gone([children[2]], "children of workers after cancel", SOON_S)


@check("scheduler.cancel.anew", level=Level.SINGLE, law=10, spec=CANCEL)
async def cancel_anew(bench: SchedulerBench) -> None:
    """After cancel the role can be submitted again, with fresh workers and as many as asked for."""
    async with bench.scheduler() as scheduler:
        (first,) = await bench.start(scheduler, bench.job("one", env={"PROBE_TURN": "first"}))
        await first.call("commit_weights", 7, timeout_s=30)
        old = (await ask(first, "facts"))["pid"]
        await bench.soon(scheduler.cancel("one"), "cancel")
        workers = await bench.start(scheduler, bench.job("one", num_workers=2, env={"PROBE_TURN": "second"}))
        expect([worker.id for worker in workers] == ["one/0", "one/1"], f"handles are {[w.id for w in workers]}")
        for worker in workers:
            facts = await ask(worker, "facts", names=["PROBE_TURN"])
            expect(facts["pid"] != old, f"{worker.id} is the old process")
            expect(facts["env"] == {"PROBE_TURN": "second"}, f"{worker.id} has the variables {facts['env']}")
            expect((await worker.call("status", timeout_s=30)).version == 0, f"{worker.id} has the old engine's state")
        await bench.raised(Exception, ask(first, "echo", value=1), "a call of the handle before cancel")


@check("scheduler.cancel.in_any_state", level=Level.FAULTS, law=10, spec=CANCEL)
async def cancel_in_any_state(bench: SchedulerBench) -> None:
    """Workers that are dead, stopped, at work or deaf to signals are all gone when cancel returns."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("three", num_workers=3))
        await bench.start(scheduler, bench.job("deaf"), stubborn=True)
        children = [await bench.spawn(worker) for worker in workers]
        pids = [status.pid or 0 for role in ("three", "deaf") for status in scheduler.poll(role)]
        busy = bench.doing(ask(workers[2], "wait", timeout_s=60.0, gate="never"))
        Kill(pids[0]).inject()
        await bench.told(scheduler, "three", 0, WorkerState.ENDED)
        stop = Stop(pids[1])
        stop.inject()
        try:
            await bench.soon(asyncio.gather(scheduler.cancel("three"), scheduler.cancel("deaf")), "cancel", 30.0)
            await bench.gone(pids, "after cancel")
            await bench.gone(children, "children of workers after cancel", SOON_S)
        finally:
            if alive(pids[1]):
                stop.heal()
        await bench.raised(BaseException, busy, "a call of a worker that was cancelled")


@check("scheduler.cancel.while_ending", level=Level.SINGLE, law=10, spec=CANCEL)
async def cancel_while_ending(bench: SchedulerBench) -> None:
    """Who cancels a role that is ending, or closes meanwhile, waits until it is gone as whoever came first does."""
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job("deaf"), stubborn=True)
        pids = [status.pid or 0 for status in scheduler.poll("deaf")]

        async def over(call: Awaitable[None], what: str) -> None:
            await bench.soon(call, what, 30.0)
            left = [pid for pid in pids if alive(pid)]
            expect(not left, f"{what} returned while processes {left} of a role that ended were there")

        first = bench.doing(scheduler.cancel("deaf"))
        for _ in range(5):  # it has begun
            await asyncio.sleep(0)
        await asyncio.gather(over(scheduler.cancel("deaf"), "a second cancel"), over(scheduler.close(), "close"))
        await bench.soon(first, "the first cancel", 30.0)


@check("scheduler.close.twice", level=Level.SINGLE, law=10, spec=CLOSE)
async def close_twice(bench: SchedulerBench) -> None:
    """Close ends every role and all they started; closing again, or a scheduler never used, does nothing."""
    async with bench.scheduler() as unused:
        await bench.soon(unused.close(), "close of a scheduler never used")
    before = bench.children()
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("one", num_workers=2))
        workers += await bench.start(scheduler, bench.job("two"))
        for worker in workers:
            await bench.spawn(worker)
        mine = bench.processes() - before
        await bench.soon(scheduler.close(), "close")
        pids = {status.pid for role in ("one", "two") for status in scheduler.poll(role) if status.pid}
        await bench.gone(pids, "after close")
        await bench.gone(mine, "after close", SOON_S)
        await bench.soon(scheduler.close(), "a second close")
        await bench.soon(scheduler.cancel("one"), "cancel after close")
    await bench.until(lambda: bench.children() <= before, "after close no dead child waits to be collected", SOON_S)


@check("scheduler.close.leaves_nothing", level=Level.SINGLE, law=10, spec=CLOSE)
async def close_leaves_nothing(bench: SchedulerBench) -> None:
    """After close there is no port, no descriptor and no file that was not there before, but the logs."""
    scratch = bench.folder / "scratch"
    scratch.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        await _once(bench)  # what is made once in a process stays
        gc.collect()
        ports, open_before = listening(), _descriptors()
        logs = [path for _ in range(2) for path in await _once(bench)]
        gc.collect()
    finally:
        tempfile.tempdir = before

    def left() -> dict[str, object]:
        files = [path.name for path in scratch.rglob("*")]
        return {"ports": listening() - ports, "descriptors": dict(_descriptors() - open_before), "scratch": files}

    try:  # a thread that ends just now may hold something for a moment
        await bench.until(lambda: not any(left().values()), "close leaves nothing")
    except Late as late:
        told = {name: what for name, what in left().items() if what}
        raise Late(f"still there after two schedulers were closed: {told}", starved=late.starved) from None
    found = {path for log in logs for path in log.parent.rglob("*") if path.is_file()}
    expect(found == set(logs), f"files beside the logs: {[path.name for path in found - set(logs)]}")


@check("scheduler.close.worker_says_goodbye", level=Level.SINGLE, law=10, spec=CANCEL)
async def says_goodbye(bench: SchedulerBench) -> None:
    """A worker that can is let end in good order: its engine is closed first."""
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job("one", num_workers=2))
        await bench.start(scheduler, bench.job("two"))
        logs = [Path(status.log_path) for role in ("one", "two") for status in scheduler.poll(role)]
        await bench.soon(scheduler.cancel("one"), "cancel")
    for log in logs:
        text = await asyncio.to_thread(log.read_text)
        expect("closed in good order" in text, f"the engine of {log.name} was not closed: {text[-300:]!r}")


@check("scheduler.orphans.none", level=Level.FAULTS, law=10, spec=CLOSE)
async def no_orphans(bench: SchedulerBench) -> None:
    """When the controller is killed, its workers end, and all they started."""
    given = {
        "locator": attrs.asdict(bench.target.locator),
        "options": bench.case(**bench.options()).options,
        "job": attrs.asdict(bench.job(num_workers=2)),
    }
    controller = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "areal_conformance.benches.scheduler_controller", json.dumps(given)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert controller.stdout is not None
    assert controller.stderr is not None
    try:
        line = await bench.soon(controller.stdout.readline(), "a controller with two workers", 45.0)
        if not line:
            raise HarnessError(f"the controller failed: {(await controller.stderr.read()).decode()[-600:]}")
        pids = json.loads(line)
    finally:
        if controller.returncode is None:
            controller.kill()
        await controller.communicate()
    expect(len(pids) >= 4, f"two workers with a child each were started, the controller tells of {pids}")
    try:
        await bench.gone(pids, "after the controller was killed", SOON_S)
    finally:
        for pid in filter(alive, pids):
            Kill(pid).inject()


async def _once(bench: SchedulerBench) -> list[Path]:
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("one", num_workers=2))
        await bench.start(scheduler, bench.job("two"))
        await asyncio.gather(*(ask(worker, "echo", value=1) for worker in workers))
        return [Path(status.log_path) for role in ("one", "two") for status in scheduler.poll(role)]


def _descriptors() -> collections.Counter[str]:
    """Return how many descriptors of each kind are open."""
    return collections.Counter(re.sub(r"\d+", "", one) for one in descriptors())


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
            told = f"a log that cannot be written is a StorageError that names it: {error!r}"
            expect(isinstance(error, StorageError) and logs[-1].name in str(error), told)
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


_EXAMPLES = 5
_STEPS = 8


@check("scheduler.machine.lifecycle", level=Level.FAULTS, law=10, spec=SUBMIT, deadline_s=180.0)
def lifecycle(bench: SchedulerBench) -> None:
    """In any order of submit, call, kill and cancel no worker is lost, none doubled, and every state told right."""
    explore(bench, num_examples=_EXAMPLES, max_steps=_STEPS)
