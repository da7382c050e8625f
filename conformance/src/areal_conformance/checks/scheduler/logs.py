"""Logs when it matters: of a worker that wrote much, or no text, before it died; of one that was started again.

Knows: workers that write as they are told.
Does not know: where a scheduler keeps logs, beyond the folder it was given.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import STATUS
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError
from areal_core.contract.scheduler import WorkerState

_MANY = tuple(f"line {number} of many, each of them as long as lines of a log are" for number in range(1500))
_WORDS = "why it ended"
_NO_TEXT = b"caf\xe9 \xff\xfe \x00 \x1b[31m, and of a letter a half: \xe2\x82\n"


@check("scheduler.log.long", level=Level.SINGLE, law=9, spec=STATUS)
async def log_long(bench: SchedulerBench) -> None:
    """Of a worker that wrote 90 kB and died the last lines are told, in their order, in its state and in the error."""
    async with bench.scheduler() as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        await ask(worker, "print", lines=list(_MANY), stream="stdout")
        work = ask(worker, "exit", code=3, lines=[_WORDS])
        await bench.raised(BaseException, work, "a call in which its worker exits", _WORDS)
        status = await bench.told(scheduler, "probe", 0, WorkerState.ENDED)
        tail = [line.strip() for line in status.log_tail]
        expect(len(tail) >= 2, f"of 1,501 lines {tail} are told")
        told = f"the last lines were {[*_MANY[-2:], _WORDS]}, told are {tail[:2]} ... {tail[-2:]}"
        expect([*_MANY, _WORDS][-len(tail) :] == tail, told)


@check("scheduler.log.bytes", level=Level.SINGLE, law=9, spec=STATUS)
async def log_bytes(bench: SchedulerBench) -> None:
    """Bytes that are no text keep nothing from being told: the end of who wrote them, its last words, the others."""
    async with bench.scheduler() as scheduler:
        odd, other = await bench.start(scheduler, bench.job("pair", num_workers=2))
        for _ in range(40):
            await ask(odd, "write", value=50 * _NO_TEXT)
        work = ask(odd, "exit", code=3, lines=[_WORDS])
        await bench.raised(ArealError, work, "a call in which a worker exits that wrote no text", odd.id, _WORDS)
        status = await bench.told(scheduler, "pair", 0, WorkerState.ENDED)
        told = f"the last line after bytes that are no text was {_WORDS!r}, told are {status.log_tail[-2:]}"
        expect(status.log_tail[-1:] == (_WORDS,), told)
        states = [str(status.state) for status in scheduler.poll("pair")]
        expect(states == ["ended", "running"], f"of a worker that ended and its neighbour poll tells {states}")
        expect((await ask(other, "echo", value=5))["value"] == 5, "its neighbour is of no use")


@check("scheduler.log.kept", level=Level.SINGLE, law=9, spec=STATUS)
async def log_kept(bench: SchedulerBench) -> None:
    """What workers wrote stays in the folder of logs: after the role is started again, and by the next scheduler."""
    folder, said = bench.folder / "logs", []
    for turn in ("first", "second"):
        async with bench.scheduler(log_dir=str(folder)) as scheduler:
            for again in ("once", "anew"):
                (worker,) = await bench.start(scheduler, bench.job())
                said.append(f"the {turn} scheduler started it {again}")
                await ask(worker, "print", lines=said[-1:], stream="stderr")
                await bench.soon(scheduler.cancel("probe"), "cancel")
                text = await asyncio.to_thread(_all_text, folder)
                lost = [line for line in said if line not in text]
                expect(not lost, f"of the lines {said} the logs in {folder} have lost {lost}")


def _all_text(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())
