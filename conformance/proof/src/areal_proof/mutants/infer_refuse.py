"""Engines that do not claim an ability and do not refuse it either: what is asked for is dropped without a word.

Knows: the second inference engine with one claim taken back.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import GenerationRequest, InferenceSpec
from areal_core.contract.optional import ToolParse
from areal_core.contract.train import EngineInfo
from areal_core.plugins.claims import Claim, unsupported
from areal_proof.mutants import mutant
from areal_proof.mutants.infer_sampling import asked
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_reference.infer.engine import ReferenceInferenceEngine


def without(*claims: str) -> Mapping[str, Claim]:
    """Return claims taken back."""
    return {claim: unsupported("this engine cannot") for claim in claims}


class _Neutral(SecondInferenceEngine):
    """Drops some of what a request asks for; base of the mutants below."""

    neutral: ClassVar[Mapping[str, Any]] = {}  # Any: sampling parameters

    def _seat(self, request: GenerationRequest) -> Seat:
        return super()._seat(asked(request, **self.neutral))


@mutant("infer/second", killers=("infer.refuse.top_p",), claims=without("sampling.top_p"))
class DropsTopP(_Neutral):
    """Does not claim top_p and samples without it."""

    neutral: ClassVar[Mapping[str, Any]] = {"top_p": 1.0}


@mutant("infer/second", killers=("infer.refuse.top_k",), claims=without("sampling.top_k"))
class DropsTopK(_Neutral):
    """Does not claim top_k and samples without it."""

    neutral: ClassVar[Mapping[str, Any]] = {"top_k": 0}


@mutant("infer/second", killers=("infer.refuse.min_tokens",), claims=without("sampling.min_tokens"))
class DropsTheMinimum(_Neutral):
    """Does not claim a minimum length and lets outputs end before it."""

    neutral: ClassVar[Mapping[str, Any]] = {"min_new_tokens": 0}


@mutant("infer/second", killers=("infer.refuse.stop_strings",), claims=without("sampling.stop_strings"))
class DropsStopStrings(_Neutral):
    """Does not claim stop strings and goes on past them."""

    neutral: ClassVar[Mapping[str, Any]] = {"stop": ()}


@mutant("infer/second", killers=("infer.refuse.stop_tokens",), claims=without("sampling.stop_tokens"))
class DropsStopTokens(_Neutral):
    """Does not claim stop tokens and goes on past them."""

    neutral: ClassVar[Mapping[str, Any]] = {"stop_token_ids": ()}


@mutant("infer/second", killers=("infer.refuse.seed",), claims=without("sampling.seed"))
class DropsSeeds(_Neutral):
    """Does not claim seeds and draws without them."""

    neutral: ClassVar[Mapping[str, Any]] = {"seed": None}


@mutant("infer/second", killers=("infer.refuse.ignore_eos",), claims=without("sampling.ignore_eos"))
class DropsIgnoringTheEnd(_Neutral):
    """Does not claim to ignore the end token and ends there."""

    neutral: ClassVar[Mapping[str, Any]] = {"ignore_eos": False}


@mutant("infer/second", killers=("infer.refuse.min_p",), claims=without("sampling.min_p"))
class DropsMinP(_Neutral):
    """Does not claim min_p and samples without it."""

    neutral: ClassVar[Mapping[str, Any]] = {"min_p": 0.0}


@mutant("infer/second", killers=("infer.refuse.penalties",), claims=without("sampling.penalties"))
class DropsPenalties(_Neutral):
    """Does not claim penalties and samples without them."""

    neutral: ClassVar[Mapping[str, Any]] = {"frequency_penalty": 0.0, "presence_penalty": 0.0}


@mutant("infer/second", killers=("infer.refuse.penalties",), claims=without("sampling.penalties"))
class DropsNegativePenalties(_Neutral):
    """Does not claim penalties, refuses positive ones and drops negative ones."""

    neutral: ClassVar[Mapping[str, Any]] = {"frequency_penalty": 0.0, "presence_penalty": 0.0}

    def _seat(self, request: GenerationRequest) -> Seat:
        if max(request.sampling.frequency_penalty, request.sampling.presence_penalty) > 0:
            raise CapabilityError("penalties are not claimed", why="this engine cannot")
        return super()._seat(request)


@mutant("infer/second", killers=("infer.refuse.repetition_penalty",), claims=without("sampling.repetition_penalty"))
class DropsTheRepetitionPenalty(_Neutral):
    """Does not claim a repetition penalty and samples without it."""

    neutral: ClassVar[Mapping[str, Any]] = {"repetition_penalty": 1.0}


@mutant("infer/second", killers=("infer.refuse.structured",), claims=without("sampling.structured"))
class DropsTheStructure(SecondInferenceEngine):
    """Does not claim structured output and generates whatever comes."""

    def _seat(self, request: GenerationRequest) -> Seat:
        return super()._seat(attrs.evolve(request, structure=None))


@mutant("infer/second", killers=("infer.refuse.tools",), claims=without("tools.parse"))
class ReadsNoCalls(SecondInferenceEngine):
    """Does not claim to read tool calls and finds none anywhere."""

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        return ToolParse(content=text)


@mutant("infer/second", killers=("infer.refuse.scoring",), claims=without("scoring"))
class ScoresZeros(SecondInferenceEngine):
    """Does not claim scoring and scores zeros."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        return [0.0 for _ in input_ids]


@mutant("infer/second", killers=("infer.refuse.sleep",), claims=without("memory.sleep"), row="sleep-is-real")
class SleepDoesNothing(SecondInferenceEngine):
    """Does not claim sleep and takes the call for nothing."""

    async def sleep(self) -> None:
        self._require()


@mutant("infer/second", killers=("infer.refuse.adapters",), claims=without("lora.adapters"))
class DropsTheAdapter(SecondInferenceEngine):
    """Does not claim adapters and serves the base weights to requests that name one."""

    def _seat(self, request: GenerationRequest) -> Seat:
        return super()._seat(attrs.evolve(request, adapter=""))


@mutant("infer/second", killers=("infer.refuse.extras",), claims=without("images"))
class DropsImages(SecondInferenceEngine):
    """Does not claim images and answers as if there were none."""

    def _seat(self, request: GenerationRequest) -> Seat:
        return super()._seat(attrs.evolve(request, extras={}))


@mutant("infer/second", killers=("infer.refuse.experts",), claims=without("experts.trace"), row="expert-replay")
class TracesZeros(SecondInferenceEngine):
    """Does not claim to trace experts and returns a trace of zeros."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        logits, routes = super()._next_logits(seat)
        return logits, None if routes is None else torch.zeros_like(routes)


@mutant("infer/reference", killers=("infer.refuse.tensor_parallel",))
class DropsTheLayout(ReferenceInferenceEngine):
    """Does not claim tensor parallelism and starts on one device whatever the layout."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        return await super().start(attrs.evolve(spec, layout={}))


@mutant("infer/second", killers=("infer.refuse.top_p",), claims=without("sampling.top_p"))
class RefusesWithoutAReason(SecondInferenceEngine):
    """Does not claim top_p and refuses it with NotImplementedError."""

    def _seat(self, request: GenerationRequest) -> Seat:
        if request.sampling.top_p < 1.0:
            raise NotImplementedError
        return super()._seat(request)
