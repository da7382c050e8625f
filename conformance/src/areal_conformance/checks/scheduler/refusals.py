"""What a scheduler says to a job that asks for an ability it does not claim: no, and why.

Knows: how each ability is asked for.
Does not know: whether it would have worked; the session finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from areal_conformance.benches.scheduler import SchedulerBench
from areal_conformance.check import Check, Level, check
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


def _refusal(word: str, fields: dict[str, Any]) -> Check:  # Any: fields of Job
    async def refused(bench: SchedulerBench) -> None:
        async with bench.scheduler() as scheduler:
            await bench.start(scheduler, bench.job("first"))
            before = bench.processes()
            job = bench.job("second", num_workers=2, **fields)
            await bench.arefuses(word, lambda: scheduler.submit(job))
            await bench.gone(bench.processes() - before, "after a job that was refused")

    refused.__doc__ = (
        f"A job that asks for `{word}` is refused where it is not claimed; ignored, it would run elsewhere."
    )
    key = word.replace(".", "_")
    return check(f"scheduler.refuse.{key}", level=Level.SINGLE, law=8, spec=JOB, unless=(word,), since=(1, 1))(refused)


HOSTS_ONE, HOSTS_SPREAD, HOSTS_NAMED, MEMORY, IMAGE, TOGETHER_HOST, TOGETHER_DEVICES = (
    _refusal(word, dict(fields)) for word, fields in _ASKED.items()
)
