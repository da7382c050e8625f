"""What a check is given, by role.

Knows: which bench belongs to which role; imports each when it is needed.
Does not know: what is in them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from areal_conformance.benches.base import Bench
    from areal_conformance.target import Target

BENCHES: Mapping[str, str] = MappingProxyType(
    {
        "static": "areal_conformance.benches.static:StaticBench",
        "train": "areal_conformance.benches.train:TrainBench",
        "infer": "areal_conformance.benches.infer:InferBench",
        "pair": "areal_conformance.benches.pair:PairBench",
        "scheduler": "areal_conformance.benches.scheduler:SchedulerBench",
        "transport": "areal_conformance.benches.transport:TransportBench",
        "device": "areal_conformance.benches.static:StaticBench",
        "workflow": "areal_conformance.benches.workflow:WorkflowBench",
        "endpoint": "areal_conformance.benches.endpoint:EndpointBench",
        "renderer": "areal_conformance.benches.renderer:RendererBench",
    }
)


def bench_for(role: str, target: Target) -> Bench:
    """Make the bench of a role around a target; builds nothing of the target yet."""
    module, _, name = BENCHES[role].partition(":")
    bench: Bench = getattr(importlib.import_module(module), name)(target)
    return bench
