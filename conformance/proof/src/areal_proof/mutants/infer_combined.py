"""Generators that are right in every way they go, and forget a word of a request where they go another one.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from typing import Any

import attrs

from areal_core.contract.inference import GenerationRequest, SamplingParams
from areal_proof.mutants.rows import breaking, given, row, then
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Slot
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)
breaks_second = breaking("infer/second", SecondInferenceEngine)


def _exactly(self: Any, request: GenerationRequest, **sampling: Any) -> SamplingParams:
    """Return what is drawn with, where deterministic mode asks for something else. Any: what the parameters are."""
    return attrs.evolve(request.sampling, **sampling) if self._config.deterministic else request.sampling


def _greedy_filtered(self: Any, request: GenerationRequest) -> SamplingParams:
    """Return a draw that can only be the likeliest token, where that one is asked for and others are filtered out."""
    wanted = request.sampling
    filtered = wanted.min_p > 0 or wanted.top_k > 0 or wanted.top_p < 1
    return _exactly(self, request, temperature=1e-4) if wanted.temperature == 0 and filtered else wanted


def _own_ends(self: Any, result: Slot) -> None:
    """Let a request with an adapter end at the model's own end tokens alone."""
    if result.adapter is not None:
        result.end_ids = self.require().end_ids


ROWS = breaks.rows(
    row("ExactWithoutPenalties", "Forgets penalties in deterministic mode.", "infer.combined.deterministic",
        generate=given(sampling=lambda self, request: _exactly(self, request, frequency_penalty=0.0,
            presence_penalty=0.0, repetition_penalty=1.0))),
    row("ExactWithoutStops", "Forgets stop tokens in deterministic mode.", "infer.combined.deterministic",
        generate=given(sampling=lambda self, request: _exactly(self, request, stop_token_ids=()))),
    row("ExactGreedyFiltered", "Tells a filtered distribution's log-probs of greedy requests in deterministic mode.",
        "infer.combined.deterministic", generate=given(sampling=_greedy_filtered)),
)  # fmt: skip

SECOND_ROWS = breaks_second.rows(
    row("AdaptersWithoutPenalties", "Takes no penalties off where a request names an adapter.",
        "infer.combined.adapters",
        penalised=lambda original, slot, logits: original() if slot.adapter is None else logits),
    row("AdaptersEndTheirOwnWay", "Forgets stop tokens where a request names an adapter.", "infer.combined.adapters",
        slot_for=then(lambda self, result: _own_ends(self, result))),
)  # fmt: skip
