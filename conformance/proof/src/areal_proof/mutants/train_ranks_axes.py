"""Trainers that take a parallel axis they know nothing of.

Knows: layouts and claims.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import attrs
import torch

from areal_conformance.target import Target
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.plugins.claims import full, unsupported
from areal_proof.mutants import mutant, replacing
from areal_proof.mutants.rows import breaking, row
from areal_proof.mutants.train_ranks import Sharing
from areal_proof.second.train.engine import SecondTrainEngine, Started


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


class _ExpertParallel(Sharing):
    """Takes ranks that are to share the experts for plain data ranks, which compute the same."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        shared = dict(spec.layout).get("e", 1) > 1
        return super().start(attrs.evolve(spec, layout={"d": rank.world_size}) if shared else spec, rank)


class _OwnTokensOnly(_ExpertParallel):
    """Gives each expert to one rank, and to the expert the tokens of that rank only."""

    def spoil(self, here: Started) -> None:
        assert here.adam is not None
        for name, tensor in here.adam.trained.items():
            _, inside, rest = name.partition(".experts.")
            if inside and int(rest.partition(".")[0]) % here.ranks.size != here.ranks.rank:
                tensor.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]


def _claiming(whole: Target, engine: type, claim: str, *layouts: str) -> Target:
    broken = replacing("train", engine, claims={claim: full()})(whole)
    return attrs.evolve(broken, adapter=attrs.evolve(broken.adapter, layouts=layouts))


@mutant("train/second", killers=("train.ranks.context",), ranks=2)
def context_is_copies(whole: Target) -> Target:
    """Claims context parallelism, and lets every context rank train on all of every sequence."""
    return _claiming(whole, _ContextParallel, "parallel.context", "d1c2")


@mutant("train/second", killers=("train.ranks.pipeline",), ranks=2)
def pipeline_is_copies(whole: Target) -> Target:
    """Claims pipeline parallelism, and lets every stage train on all layers."""
    return _claiming(whole, _PipelineParallel, "parallel.pipeline", "d1p2")


@mutant("train/second", killers=("train.ranks.expert", "train.ranks.four_experts"), ranks=4)
def experts_see_their_ranks_tokens(whole: Target) -> Target:
    """Claims expert parallelism, and trains each expert on the tokens of the rank that holds it, no others."""
    return _claiming(whole, _OwnTokensOnly, "parallel.expert", "d2e2", "d4e2")


class _TensorParallel(_LoneAxis):
    axis = "t"


breaks = breaking("train/second", _TensorParallel, ranks=2)
ROWS = breaks.rows(
    row("TakesTensorLayout", "Takes a layout with tensor ranks, which it does not claim, and trains copies.",
        "train.ranks.refuse.tensor", claims={"parallel.tensor": unsupported("data ranks only")}),
    row("TakesContextLayout", "Takes a layout with context ranks, which it does not claim, and trains copies.",
        "train.ranks.refuse.context", base=_ContextParallel),
    row("TakesPipelineLayout", "Takes a layout with stages, which it does not claim, and trains copies.",
        "train.ranks.refuse.pipeline", base=_PipelineParallel),
    row("TakesExpertLayout",
        "Takes a layout with expert ranks, which it does not claim, and trains each expert on some of its tokens.",
        "train.ranks.refuse.expert", base=_OwnTokensOnly),
)  # fmt: skip
