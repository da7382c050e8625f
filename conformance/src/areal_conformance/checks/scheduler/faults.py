"""Workers that die, exit or stand still: noticed soon, told by name and by last words, without harm to others.

Knows: SIGKILL, exit codes, SIGSTOP, output that ends in the middle of a line.
Does not know: how a scheduler finds out, or where it keeps logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from areal_conformance.benches.base import SOON_S
from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CALL, STATE, STATUS
from areal_conformance.outcome import expect
from areal_conformance.probes.processes import Kill, Stop
from areal_core.contract.errors import ArealError, WorkerDied, WorkerTimeout
from areal_core.contract.scheduler import Scheduler, WorkerState, WorkerStatus

_LINES = [f"probe line {number}" for number in range(3)]
_KILLED = (-9, 137)
_LONG_S = 60.0
_HEARTBEAT_S = 1.0
_TURNS, _TURN_S = 10, 0.02


@check("scheduler.death.in_flight", level=Level.FAULTS, law=9, spec=CALL)
async def death_in_flight(bench: SchedulerBench) -> None:
    """A worker that is killed fails its calls in flight and all later ones with WorkerDied: name and last words."""
    async with bench.scheduler() as scheduler:
        left, right = await bench.start(scheduler, bench.job("pair", num_workers=2))
        await ask(right, "print", lines=_LINES, stream="stdout")
        calls = [bench.doing(ask(right, "wait", timeout_s=_LONG_S, gate=f"{n}")) for n in range(2)]
        other = bench.doing(ask(left, "wait", timeout_s=_LONG_S, gate="left"))
        await ask(right, "echo", value=0)
        with bench.suffering(Kill(bench.status(scheduler, "pair", 1).pid or 0)):
            for call in calls:
                await bench.raised(WorkerDied, call, "a call of a worker that was killed", "pair/1", _LINES[-1])
        later = ask(right, "echo", value=1)
        await bench.raised(WorkerDied, later, "a later call of a worker that was killed", "pair/1", _LINES[-1])
        expect(not other.done(), "a call of the other worker ended when its neighbour died")
        await ask(left, "open", gate="left")
        expect((await bench.soon(other, "the other worker's call"))["gate"] == "left", "it got a wrong reply")


@check("scheduler.death.status", level=Level.FAULTS, law=9, spec=STATUS)
async def death_status(bench: SchedulerBench) -> None:
    """Poll tells of a killed worker that it ended, how, and its last lines; of its neighbours that they run."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("trio", num_workers=3))
        for number, worker in enumerate(workers):
            await ask(worker, "print", lines=[f"{line} of {number}" for line in _LINES], stream="stderr")
        pids = [status.pid for status in scheduler.poll("trio")]
        with bench.suffering(Kill(pids[1] or 0)):
            status = await bench.told(scheduler, "trio", 1, WorkerState.ENDED)
        expect(status.exit_code in _KILLED, f"a worker killed by SIGKILL has exit code {status.exit_code}")
        expect((status.id, status.rank, status.pid) == ("trio/1", 1, pids[1]), f"its status is {status}")
        expect(f"{_LINES[-1]} of 1" in status.log_tail[-3:], f"its last lines are told as {status.log_tail}")
        others = [scheduler.poll("trio")[rank] for rank in (0, 2)]
        expect(all(s.state is WorkerState.RUNNING for s in others), f"its neighbours are told as {others}")
        expect([s.pid for s in others] == [pids[0], pids[2]], "its neighbours changed their processes")
        expect((await ask(workers[2], "echo", value=5))["value"] == 5, "its neighbour is of no use")


@check("scheduler.death.exit_code", level=Level.FAULTS, law=9, spec=STATUS)
async def death_exit_code(bench: SchedulerBench) -> None:
    """A worker that exits has its own exit code in poll and in the error, zero as any other, and its last words."""
    async with bench.scheduler() as scheduler:
        for code in (3, 0):
            role = f"exit{code}"
            (worker,) = await bench.start(scheduler, bench.job(role))
            words = "these are my last words"
            work = ask(worker, "exit", timeout_s=_LONG_S, code=code, lines=[words])
            await bench.raised(WorkerDied, work, f"a call in which its worker exits with {code}", words)
            status = bench.status(scheduler, role)
            expect(status.state is WorkerState.ENDED, f"poll tells of a worker that exited that it is {status.state}")
            expect(status.exit_code == code, f"exit code {code} is told as {status.exit_code}")


@check("scheduler.log.lines", level=Level.SINGLE, law=9, spec=STATUS)
async def log_lines(bench: SchedulerBench) -> None:
    """What a worker writes to its output and its error output is in its own log, and only there."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("pair", num_workers=2))
        for number, worker in enumerate(workers):
            await ask(worker, "print", lines=[f"out of {number}"], stream="stdout")
            await ask(worker, "print", lines=[f"err of {number}"], stream="stderr")
        texts = [await asyncio.to_thread(Path(s.log_path).read_text) for s in scheduler.poll("pair")]
        for number, text in enumerate(texts):
            for line in (f"out of {number}\n", f"err of {number}\n"):
                expect(line in text, f"{line!r} is not in the log of pair/{number}: {text[-300:]!r}")
            expect(f"of {1 - number}\n" not in text, f"the log of pair/{number} holds lines of the other worker")
        paths = [Path(status.log_path) for status in scheduler.poll("pair")]
    expect(all(path.is_file() for path in paths), "a log is gone after close")


@check("scheduler.log.folder", level=Level.SINGLE, law=8, spec=STATUS)
async def log_folder(bench: SchedulerBench) -> None:
    """Logs are in the folder asked for, made with its parents; where it cannot be made no worker is started."""
    deep = bench.folder / "not" / "there" / "yet"
    async with bench.scheduler(log_dir=str(deep)) as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        await ask(worker, "print", lines=_LINES, stream="stdout")
        log = Path(bench.status(scheduler, "probe").log_path)
        expect(log.is_absolute() and log.is_relative_to(deep), f"log_dir is {deep}, and the log {log}")
        text = await asyncio.to_thread(log.read_text)
        expect(_LINES[-1] in text, f"what the worker wrote is not in its log: {text[-300:]!r}")
    in_the_way = bench.folder / "file"
    await asyncio.to_thread(in_the_way.write_text, "mine")
    async with bench.scheduler(log_dir=str(in_the_way / "logs")) as scheduler:
        before = bench.processes()
        work = scheduler.submit(bench.job())
        error = await bench.raised(ArealError, work, "a job whose logs have no place", str(in_the_way))
        expect(error.why or error.fix, f"the error says neither why nor what to do: {error}")
        await bench.gone(bench.processes() - before, "after a job whose logs have no place", SOON_S)
        expect(tuple(scheduler.poll("probe")) == (), f"poll tells of {scheduler.poll('probe')}")
    expect(await asyncio.to_thread(in_the_way.read_text) == "mine", "what was in the way of the logs was written over")


@check("scheduler.silence.noticed", level=Level.FAULTS, law=9, spec=STATE)
async def silence_noticed(bench: SchedulerBench) -> None:
    """A worker that stands still is told as silent within the heartbeat's deadline, and as running when it goes on.

    Who waits for an answer of it gets an error then, and does not wait for the call's own end.
    """
    async with bench.scheduler(heartbeat_timeout_s=0.6) as scheduler:
        left, right = await bench.start(scheduler, bench.job("pair", num_workers=2))
        await ask(left, "print", lines=_LINES, stream="stdout")
        pid = bench.status(scheduler, "pair", 0).pid
        waiting = bench.doing(ask(left, "wait", timeout_s=600.0, gate="silent"))
        with bench.suffering(Stop(pid or 0)):
            status = await bench.told(scheduler, "pair", 0, WorkerState.SILENT)
            await bench.raised(ArealError, waiting, "a call of a worker that is silent now", left.id)
            expect((status.pid, status.exit_code) == (pid, None), f"a silent worker is told as {status}")
            expect(_LINES[-1] in status.log_tail, f"the last lines of a silent worker are {status.log_tail}")
            expect((await ask(right, "echo", value=5))["value"] == 5, "its neighbour is of no use")
        await bench.told(scheduler, "pair", 0, WorkerState.RUNNING)
        expect((await ask(left, "echo", value=5))["value"] == 5, "a worker that went on is of no use")


@check("scheduler.silence.of_its_own", level=Level.FAULTS, law=9, spec=STATE)
async def silence_of_its_own(bench: SchedulerBench) -> None:
    """Where controller and workers stand still together, as on a machine that sleeps, no worker is told as silent."""
    async with bench.scheduler(heartbeat_timeout_s=_HEARTBEAT_S) as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        with bench.suffering(Stop(bench.status(scheduler, "probe").pid or 0)):
            await asyncio.sleep(_HEARTBEAT_S / 5)  # so that a sign of life is waited for
            time.sleep(2 * _HEARTBEAT_S)  # noqa: ASYNC251  the controller stands still, its loop too
            told = {status.state for _ in range(2) for status in await _polled(scheduler, "probe")}
        told |= {status.state for _ in range(_TURNS) for status in await _polled(scheduler, "probe")}
        expect(told == {WorkerState.RUNNING}, f"all stood still together, and the worker is told as {sorted(told)}")
        expect((await ask(worker, "echo", value=5))["value"] == 5, "a worker that went on is of no use")


async def _polled(scheduler: Scheduler, role: str) -> Sequence[WorkerStatus]:
    await asyncio.sleep(_TURN_S)
    return scheduler.poll(role)


@check("scheduler.silence.calls", level=Level.FAULTS, law=9, spec=CALL)
async def silence_calls(bench: SchedulerBench) -> None:
    """A call of a worker that stands still ends with WorkerTimeout, also where its silence is not noticed yet."""
    async with bench.scheduler() as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        with bench.suffering(Stop(bench.status(scheduler, "probe").pid or 0)):
            work = ask(worker, "echo", timeout_s=0.3, value=1)
            await bench.raised(WorkerTimeout, work, "a call of a stopped worker", worker.id)
            for _ in range(200):
                scheduler.poll("probe")
        given = await ask(worker, "echo", value=2)
        expect(given == {"value": 2}, f"after it went on, echo of 2 got the reply {given}")


@check("scheduler.death.calls_at_cancel", level=Level.FAULTS, law=9, spec=CALL)
async def calls_at_cancel(bench: SchedulerBench) -> None:
    """Calls that wait when their role is cancelled or their scheduler closed end with an error, and later ones too."""
    async with bench.scheduler() as scheduler:
        (one,) = await bench.start(scheduler, bench.job("one"))
        (two,) = await bench.start(scheduler, bench.job("two"))
        calls = [bench.doing(ask(w, "wait", timeout_s=_LONG_S, gate="never")) for w in (one, two)]
        await ask(one, "echo", value=0)
        await bench.soon(scheduler.cancel("one"), "cancel")
        await bench.raised(ArealError, calls[0], "a call that waits while its role is cancelled")
        expect(not calls[1].done(), "a call of another role ended with the one that was cancelled")
        await ask(two, "echo", value=0)
        await bench.soon(scheduler.close(), "close")
        await bench.raised(ArealError, calls[1], "a call that waits while its scheduler is closed")
        for worker in (one, two):
            await bench.raised(ArealError, ask(worker, "echo", timeout_s=_LONG_S, value=0), "a call of an ended worker")


_BROKEN_OFF = "Fatal error: out of mem"
_UNBUFFERED = "PYTHONUNBUFFERED"
"""Set for the suite's own processes, whose environment workers may have."""


@contextlib.contextmanager
def _unset(name: str) -> Iterator[None]:
    """Take a variable out of this process's environment for the block."""
    before = os.environ.pop(name, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before


@check("scheduler.log.unfinished", level=Level.FAULTS, law=9, spec=STATUS)
async def log_unfinished(bench: SchedulerBench) -> None:
    """Last words are told though nothing flushed them or ended their line: of workers that end or fall silent."""
    with _unset(_UNBUFFERED):
        async with bench.scheduler(heartbeat_timeout_s=0.6) as scheduler:
            exits, killed = await bench.start(scheduler, bench.job("gang", num_workers=2))
            (silent,) = await bench.start(scheduler, bench.job("silent"))
            work = ask(exits, "exit", code=3, lines=["a whole line"], unfinished=_BROKEN_OFF)
            await bench.raised(BaseException, work, "a call in which its worker exits", _BROKEN_OFF)
            for worker in (killed, silent):
                await ask(worker, "print", lines=[_BROKEN_OFF], stream="stdout", end="", flush=False)
            with bench.suffering(Kill(bench.status(scheduler, "gang", 1).pid or 0)):
                await bench.told(scheduler, "gang", 1, WorkerState.ENDED)
            with bench.suffering(Stop(bench.status(scheduler, "silent").pid or 0)):
                await bench.told(scheduler, "silent", 0, WorkerState.SILENT)
                statuses = [*scheduler.poll("gang"), *scheduler.poll("silent")]
    for status in statuses:
        told = f"{status.id} ({status.state}) wrote {_BROKEN_OFF!r} last; log_tail is {status.log_tail}"
        expect("".join(status.log_tail[-1:]).endswith(_BROKEN_OFF), told)
