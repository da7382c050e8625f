"""Last words: what a worker wrote is told when it ends or falls silent, the line it did not finish too.

Knows: output that ends in the middle of a line, as a process that is killed leaves it.
Does not know: where a scheduler keeps logs.
"""

from __future__ import annotations

from areal_conformance.benches.scheduler import SchedulerBench, ask, told
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import STATUS
from areal_conformance.outcome import expect
from areal_conformance.probes.processes import Kill, Stop
from areal_core.contract.scheduler import WorkerState

_BROKEN_OFF = "Fatal error: out of mem"


@check("scheduler.log.unfinished", level=Level.FAULTS, law=9, spec=STATUS)
async def log_unfinished(bench: SchedulerBench) -> None:
    """Last words without the end of their line are told: of a worker that exits, is killed, or falls silent."""
    async with bench.scheduler(heartbeat_timeout_s=0.6) as scheduler:
        exits, killed = await bench.start(scheduler, bench.job("gang", num_workers=2))
        (silent,) = await bench.start(scheduler, bench.job("silent"))
        work = ask(exits, "exit", code=3, lines=["a whole line"], unfinished=_BROKEN_OFF)
        error = await bench.raised(work, "a call in which its worker exits")
        expect(_BROKEN_OFF in told(error), f"the error does not tell {_BROKEN_OFF!r}: {told(error)}")
        for worker in (killed, silent):
            await ask(worker, "print", lines=[_BROKEN_OFF], stream="stderr", end="")
        with bench.suffering(Kill(bench.status(scheduler, "gang", 1).pid or 0)):
            await bench.until(
                lambda: bench.status(scheduler, "gang", 1).state is WorkerState.ENDED, "poll tells that it ended"
            )
        with bench.suffering(Stop(bench.status(scheduler, "silent").pid or 0)):
            await bench.until(
                lambda: bench.status(scheduler, "silent").state is WorkerState.SILENT, "poll tells that it is silent"
            )
            statuses = [*scheduler.poll("gang"), *scheduler.poll("silent")]
        for status in statuses:
            last = status.log_tail[-1:] or ("",)
            expect(
                last[0].endswith(_BROKEN_OFF),
                f"{status.id} ({status.state}) wrote {_BROKEN_OFF!r} last; log_tail is {status.log_tail}",
            )
