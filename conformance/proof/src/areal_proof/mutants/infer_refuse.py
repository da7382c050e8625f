"""Engines that do not claim an ability and do not refuse it either: what is asked for is dropped without a word.

Knows: the second inference engine with one claim taken back.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import GenerationRequest
from areal_core.contract.optional import ToolParse
from areal_core.plugins.claims import Claim, unsupported
from areal_proof.mutants.infer_sampling import asked
from areal_proof.mutants.rows import Original, before, breaking, given, row
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks_second = breaking("infer/second", SecondInferenceEngine)
breaks_reference = breaking("infer/reference", ReferenceInferenceEngine)


def without(*claims: str) -> Mapping[str, Claim]:
    """Return claims taken back."""
    return {claim: unsupported("this engine cannot") for claim in claims}


class _Neutral(SecondInferenceEngine):
    """Drops some of what a request asks for; base of the mutants below."""

    neutral: ClassVar[Mapping[str, Any]] = {}  # Any: sampling parameters

    def _seat(self, request: GenerationRequest) -> Seat:
        return super()._seat(asked(request, **self.neutral))


breaks = breaking("infer/second", _Neutral)
ROWS = breaks.rows(
    row("DropsTopP", "Does not claim top_p and samples without it.", "infer.refuse.top_p",
        claims=without("sampling.top_p"), neutral={"top_p": 1.0}),
    row("DropsTopK", "Does not claim top_k and samples without it.", "infer.refuse.top_k",
        claims=without("sampling.top_k"), neutral={"top_k": 0}),
    row("DropsTheMinimum", "Does not claim a minimum length and lets outputs end before it.",
        "infer.refuse.min_tokens", claims=without("sampling.min_tokens"), neutral={"min_new_tokens": 0}),
    row("DropsStopStrings", "Does not claim stop strings and goes on past them.", "infer.refuse.stop_strings",
        claims=without("sampling.stop_strings"), neutral={"stop": ()}),
    row("DropsStopTokens", "Does not claim stop tokens and goes on past them.", "infer.refuse.stop_tokens",
        claims=without("sampling.stop_tokens"), neutral={"stop_token_ids": ()}),
    row("DropsSeeds", "Does not claim seeds and draws without them.", "infer.refuse.seed",
        claims=without("sampling.seed"), neutral={"seed": None}),
    row("DropsIgnoringTheEnd", "Does not claim to ignore the end token and ends there.", "infer.refuse.ignore_eos",
        claims=without("sampling.ignore_eos"), neutral={"ignore_eos": False}),
    row("DropsMinP", "Does not claim min_p and samples without it.", "infer.refuse.min_p",
        claims=without("sampling.min_p"), neutral={"min_p": 0.0}),
    row("DropsPenalties", "Does not claim penalties and samples without them.", "infer.refuse.penalties",
        claims=without("sampling.penalties"), neutral={"frequency_penalty": 0.0, "presence_penalty": 0.0}),
    row("DropsNegativePenalties", "Does not claim penalties, refuses positive ones and drops negative ones.",
        "infer.refuse.penalties", claims=without("sampling.penalties"),
        neutral={"frequency_penalty": 0.0, "presence_penalty": 0.0},
        _seat=before(lambda request: CapabilityError("penalties are not claimed", why="this engine cannot")
            if max(request.sampling.frequency_penalty, request.sampling.presence_penalty) > 0 else None)),
    row("DropsTheRepetitionPenalty", "Does not claim a repetition penalty and samples without it.",
        "infer.refuse.repetition_penalty", claims=without("sampling.repetition_penalty"),
        neutral={"repetition_penalty": 1.0}),
)  # fmt: skip


@breaks_second("_next_logits", "infer.refuse.experts", row="expert-replay", claims=without("experts.trace"))
def TracesZeros(original: Original) -> Any:
    """Does not claim to trace experts and returns a trace of zeros."""
    logits, routes = original()
    return logits, None if routes is None else torch.zeros_like(routes)


REFERENCE_ROWS = breaks_reference.rows(
    row("DropsTheLayout", "Does not claim tensor parallelism and starts on one device whatever the layout.",
        "infer.refuse.tensor_parallel", start=given(layout=dict)),
)  # fmt: skip


SECOND_ROWS = breaks_second.rows(
    row("DropsTheStructure", "Does not claim structured output and generates whatever comes.",
        "infer.refuse.structured", claims=without("sampling.structured"), _seat=given(structure=None)),
    row("ReadsNoCalls", "Does not claim to read tool calls and finds none anywhere.", "infer.refuse.tools",
        claims=without("tools.parse"), parse_tool_calls=lambda text: ToolParse(content=text)),
    row("ScoresZeros", "Does not claim scoring and scores zeros.", "infer.refuse.scoring", claims=without("scoring"),
        score=lambda input_ids: [0.0 for _ in input_ids]),
    row("SleepDoesNothing", "Does not claim sleep and takes the call for nothing.", "infer.refuse.sleep",
        row="sleep-is-real", claims=without("memory.sleep"), sleep=lambda self: self._require()),
    row("DropsTheAdapter", "Does not claim adapters and serves the base weights to requests that name one.",
        "infer.refuse.adapters", claims=without("lora.adapters"), _seat=given(adapter="")),
    row("DropsImages", "Does not claim images and answers as if there were none.", "infer.refuse.extras",
        claims=without("images"), _seat=given(extras=dict)),
    row("RefusesWithoutAReason", "Does not claim top_p and refuses it with NotImplementedError.", "infer.refuse.top_p",
        claims=without("sampling.top_p"),
        _seat=before(lambda request: NotImplementedError if request.sampling.top_p < 1.0 else None)),
)  # fmt: skip
