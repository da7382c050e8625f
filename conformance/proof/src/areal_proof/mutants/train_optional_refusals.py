"""Trainers that take what they do not claim, and do something else.

Knows: what the reference trainers refuse.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import attrs

from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_core.plugins.claims import not_yet
from areal_proof.mutants import mutant
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.refusals import refuse_routes

ENGINE = "train/reference"
_NO_REPLAY = {"experts.replay": not_yet("its routers choose")}


@mutant(ENGINE, killers=("train.refuse.lora",), claims={"lora": not_yet("all weights are trained")})
class AdapterIgnored(ReferenceTrainEngine):
    """Is asked for an adapter and trains the whole model."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Drop the adapter."""
        return super().start(attrs.evolve(spec, lora=None), rank)


@mutant(ENGINE, killers=("train.refuse.experts",), row="expert-replay", claims=_NO_REPLAY)
class RoutesIgnored(ReferenceTrainEngine):
    """Is given recorded routes and lets its routers choose."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Drop the routes."""
        return super().forward(_without_routes(batch), outputs)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Drop the routes."""
        return super().train_step(_without_routes(batch), objective)


@mutant(ENGINE, killers=("train.refuse.experts",), row="expert-replay", claims=_NO_REPLAY)
class RoutesIgnoredInTraining(ReferenceTrainEngine):
    """Refuses recorded routes when it scores, and drops them when it trains."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Refuse."""
        refuse_routes(batch)
        return super().forward(batch, outputs)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Drop the routes."""
        return super().train_step(_without_routes(batch), objective)


@mutant(
    ENGINE,
    killers=(
        "train.refuse.context",
        "train.refuse.data",
        "train.refuse.expert",
        "train.refuse.pipeline",
        "train.refuse.tensor",
    ),
)
class LayoutIgnored(ReferenceTrainEngine):
    """Starts on one rank whatever the layout asks for."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Drop the layout."""
        return super().start(attrs.evolve(spec, layout={}), rank)


@mutant(
    ENGINE,
    killers=("train.refuse.bfloat16",),
    claims={"precision.bfloat16": not_yet("this device computes in float32")},
)
class Bfloat16Widened(ReferenceTrainEngine):
    """Is asked for bfloat16, which it does not claim, and computes in float32."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Take the wider dtype."""
        return super().start(attrs.evolve(spec, dtype="float32"), rank)


@mutant(ENGINE, killers=("train.refuse.offload",), claims={"memory.offload": not_yet("everything stays")})
class OffloadForShow(ReferenceTrainEngine):
    """Has `offload` and `onload`, which it does not claim, and which do nothing."""

    def offload(self) -> None:
        """Do nothing."""

    def onload(self) -> None:
        """Do nothing."""


def _without_routes(batch: Batch) -> Batch:
    tokens = {str(name): column for name, column in batch.tokens.items() if name != ROUTED_EXPERTS}
    sequences = {str(name): column for name, column in batch.sequences.items()}
    return Batch.of(tokens, sequences, batch.lengths)
