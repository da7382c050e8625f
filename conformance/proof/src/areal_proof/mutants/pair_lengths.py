"""Broken pairs that agree on short sequences, and at some length no longer do.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import EngineInfo, Output
from areal_proof.mutants.rows import Original, breaking, row
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.train.engine import ReferenceTrainEngine

_OF = "pair/reference+reference"
_FAR = 100
breaks_reference = breaking(_OF, ReferenceTrainEngine, side="train")


class _Turned(ReferenceInferenceEngine):
    """Sees other positions than there are."""

    def seen(self, positions: Tensor) -> Tensor:
        """Return what the model is told."""
        return positions

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start, and stand before the rotary embedding."""
        info = await super().start(spec)
        rotary = self._require().stage.model.model.rotary_emb
        forward = rotary.forward

        def other(hidden: Tensor, position_ids: Tensor) -> Any:  # Any: cosines and sines
            return forward(hidden, self.seen(position_ids))

        rotary.forward = other
        return info


breaks = breaking(_OF, _Turned, side="infer")
ROWS = breaks.rows(
    row("PositionsStopCounting", "Every token beyond the first hundred is at the hundredth place.", "pair.gap.lengths",
        row="logprob-gap", seen=lambda positions: positions.clamp(max=_FAR)),
    row("SkipsAPlaceFarOut",
        "From the hundredth token on all places are one further: a table that is off by one at a page's end.",
        "pair.gap.lengths", row="logprob-gap",
        seen=lambda positions: positions + (positions >= _FAR).to(positions.dtype)),
)  # fmt: skip


@breaks_reference("forward", "pair.gap.lengths", row="logprob-gap")
def CoarseFarOut(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """The trainer's log-probs beyond the hundredth token of a sequence went through bfloat16."""
    told = original()
    if Output.LOGPROBS not in outputs:
        return told
    logprobs = told.tokens["logprobs"].clone()
    ends = batch.cu_seqlens.tolist()
    for start, stop in pairwise(ends):
        far = slice(min(start + _FAR, stop), stop)
        logprobs[far] = logprobs[far].to(torch.bfloat16).to(logprobs.dtype)
    return told.with_tokens(logprobs=logprobs)
