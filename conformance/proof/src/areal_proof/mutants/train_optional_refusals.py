"""Trainers that take what they do not claim, and do something else.

Knows: what the reference trainers refuse.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.plugins.claims import not_yet
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import before, breaking, given, row
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.refusals import refuse_routes

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
_NO_REPLAY = {"experts.replay": not_yet("its routers choose")}


ROWS = breaks.rows(
    row("AdapterIgnored", "Is asked for an adapter and trains the whole model.", "train.refuse.lora",
        claims={"lora": not_yet("all weights are trained")}, start=given(lora=None)),
    row("RoutesIgnored", "Is given recorded routes and lets its routers choose.", "train.refuse.experts",
        row="expert-replay", claims=_NO_REPLAY,
        forward=lambda original, batch, outputs: original(_without_routes(batch), outputs),
        train_step=lambda original, batch, objective: original(_without_routes(batch), objective)),
    row("RoutesIgnoredInTraining", "Refuses recorded routes when it scores, and drops them when it trains.",
        "train.refuse.experts", row="expert-replay", claims=_NO_REPLAY,
        forward=before(lambda batch: refuse_routes(batch)),
        train_step=lambda original, batch, objective: original(_without_routes(batch), objective)),
    row("LayoutIgnored", "Starts on one rank whatever the layout asks for.", "train.refuse.context",
        "train.refuse.data", "train.refuse.expert", "train.refuse.pipeline", "train.refuse.tensor",
        start=given(layout=dict)),
    row("Bfloat16Widened", "Is asked for bfloat16, which it does not claim, and computes in float32.",
        "train.refuse.bfloat16", claims={"precision.bfloat16": not_yet("this device computes in float32")},
        start=given(dtype="float32")),
)  # fmt: skip


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
