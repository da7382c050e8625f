"""Options of a scheduler change what they say, and no call: its checks again with each variant of the adapter.

Knows: which checks see most of a scheduler in little time.
Does not know: what an option means.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.scheduler import SchedulerBench
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import WORKER
from areal_conformance.varied import at_bounds, made_again, shown

_CHECKS = (
    "scheduler.close.leaves_nothing",
    "scheduler.calls.two_workers",
    "scheduler.hosts.train",
    "scheduler.rendezvous.worker",
    "scheduler.access.secrets",
    "scheduler.death.in_flight",
    "scheduler.cancel.ends",
)
rule = partial(check, level=Level.SINGLE, law=8, spec=WORKER)


@rule("scheduler.options.checks", law=1, deadline_s=240.0)
async def again(bench: SchedulerBench) -> None:
    """With each variant's options calls arrive, deaths are told, and nothing is left."""
    await made_again(bench, _CHECKS)


@rule("scheduler.options.shown", deadline_s=120.0)
async def effect(bench: SchedulerBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, bench.scheduler)


@rule("scheduler.options.bounds")
def bounds(bench: SchedulerBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before any worker is started."""
    at_bounds(bench)
