"""Host memory: what is promised to one job is not promised to another, and what no machine has to nobody.

Knows: sizes that are refused and sizes that are not, found by asking.
Does not know: how much memory there is, or how it is counted.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.scheduler import SchedulerBench, told
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB
from areal_conformance.outcome import expect
from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Scheduler

_EXBIBYTE = 2**60
_LEAST = 2**20
rule = partial(check, level=Level.SINGLE, law=8, spec=JOB, requires=("memory",), since=(1, 1))


@rule("scheduler.memory.impossible")
async def impossible(bench: SchedulerBench) -> None:
    """Memory that no machine has is refused as a resource, nothing is started, and the role stays free."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        expect(await _is_refused(bench, scheduler, "large", _EXBIBYTE), "an exbibyte for each worker was granted")
        await bench.gone(bench.processes() - before, "after a job that was refused")
        expect(tuple(scheduler.poll("large")) == (), "poll tells of workers of a job that was refused")
        await bench.start(scheduler, bench.job("large", memory=_LEAST))


@rule("scheduler.memory.promised", law=0, unless=("hosts.spread",))
async def promised(bench: SchedulerBench) -> None:
    """Of one machine, two jobs do not both get more than half; what a job had is there again once it is gone."""
    async with bench.scheduler() as scheduler:
        size = _EXBIBYTE
        while size > _LEAST and await _is_refused(bench, scheduler, "one", size):
            size //= 2
        expect(size < _EXBIBYTE, "an exbibyte was granted")
        expect(
            await _is_refused(bench, scheduler, "two", size), f"{size} bytes were granted twice, {2 * size} were not"
        )
        await scheduler.cancel("one")
        expect(not await _is_refused(bench, scheduler, "two", size), f"{size} bytes are not free again")


async def _is_refused(bench: SchedulerBench, scheduler: Scheduler, role: str, size: int) -> bool:
    try:
        await scheduler.submit(bench.job(role, memory=size))
    except ResourceError as error:
        expect(role in told(error), f"the refusal does not name the role: {told(error)}")
        return True
    return False
