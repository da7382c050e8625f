"""Trainers that take a parallel axis they know nothing of.

Knows: layouts and claims.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import attrs

from areal_conformance.mutants import mutant, replacing
from areal_conformance.second.train.engine import SecondTrainEngine
from areal_conformance.target import Target
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.plugins.claims import full, unsupported


class _LoneAxis(SecondTrainEngine):
    """Takes an axis it knows nothing of for data ranks that all get the whole batch."""

    axis = ""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        degree = dict(spec.layout).get(self.axis, 1)
        layout = {"d": degree * dict(spec.layout).get("d", 1)}
        info = super().start(attrs.evolve(spec, layout=layout) if degree > 1 else spec, rank)
        return attrs.evolve(info, data_rank=0, data_size=1) if degree > 1 else info


class _ContextParallel(_LoneAxis):
    axis = "c"


class _PipelineParallel(_LoneAxis):
    axis = "p"


def _claiming(whole: Target, engine: type, axis: str, claim: str) -> Target:
    broken = replacing("train", engine, claims={claim: full()})(whole)
    return attrs.evolve(broken, adapter=attrs.evolve(broken.adapter, layouts=(f"d1{axis}2",)))


@mutant("train/second", killers=("train.ranks.context",), ranks=2)
def context_is_copies(whole: Target) -> Target:
    """Claims context parallelism, and lets every context rank train on all of every sequence."""
    return _claiming(whole, _ContextParallel, "c", "parallel.context")


@mutant("train/second", killers=("train.ranks.pipeline",), ranks=2)
def pipeline_is_copies(whole: Target) -> Target:
    """Claims pipeline parallelism, and lets every stage train on all layers."""
    return _claiming(whole, _PipelineParallel, "p", "parallel.pipeline")


class _TensorParallel(_LoneAxis):
    axis = "t"


@mutant(
    "train/second",
    killers=("train.ranks.refuse.tensor",),
    claims={"parallel.tensor": unsupported("data ranks only")},
    ranks=2,
)
class TakesTensorLayout(_TensorParallel):
    """Takes a layout with tensor ranks, which it does not claim, and trains copies."""


@mutant("train/second", killers=("train.ranks.refuse.context",), ranks=2)
class TakesContextLayout(_ContextParallel):
    """Takes a layout with context ranks, which it does not claim, and trains copies."""


@mutant("train/second", killers=("train.ranks.refuse.pipeline",), ranks=2)
class TakesPipelineLayout(_PipelineParallel):
    """Takes a layout with stages, which it does not claim, and trains copies."""
