"""What a scheduler says to a job that asks for an ability it does not claim: no, and why.

Knows: how each ability is asked for.
Does not know: whether it would have worked; the session finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from areal_conformance.benches.scheduler import SchedulerBench
from areal_conformance.check import Level, Row, family
from areal_conformance.checks.scheduler.anchors import JOB
from areal_core.contract.scheduler import Share, Together

_ASKED: Mapping[str, Mapping[str, Any]] = MappingProxyType(  # Any: fields of Job
    {
        "hosts.one": {"num_hosts": 1},
        "hosts.spread": {"num_hosts": 2},
        "hosts.named": {"hosts": ("localhost",)},
        "memory": {"memory": 2**20},
        "image": {"image": "registry.invalid/areal:1"},
        "together.host": {"together_with": Together(role="first")},
        "together.devices": {"together_with": Together(role="first", share=Share.DEVICES)},
    }
)
"""Ability -> fields of a job that asks for it."""


@family(
    "scheduler.refuse.{word}",
    {word.replace(".", "_"): Row(word, (word, asked), unless=(word,)) for word, asked in _ASKED.items()},
    level=Level.SINGLE,
    law=8,
    spec=JOB,
    since=(1, 1),
)
async def refused(bench: SchedulerBench, case: tuple[str, Mapping[str, Any]]) -> None:
    """A job that asks for `{...}` is refused where it is not claimed; ignored, it would run elsewhere."""
    claim, fields = case
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job("first"))
        before = bench.processes()
        job = bench.job("second", num_workers=2, **fields)
        await bench.arefuses(claim, lambda: scheduler.submit(job))
        await bench.gone(bench.processes() - before, "after a job that was refused")
