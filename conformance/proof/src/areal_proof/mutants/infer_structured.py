"""Engines whose structured output is not structured, or whose tool calls are not what was written.

Knows: the second inference engine, the structure of a seat, the parser of its tool calls.
Does not know: how it is caught.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import GenerationRequest, Grammar, Structure
from areal_core.contract.optional import ToolCall, ToolParse
from areal_proof.mutants import mutant
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution
from areal_proof.second.infer.structure import StructuredText

Tools = Sequence[Mapping[str, Any]]  # Any: as in the contract


@mutant("infer/second", killers=("infer.structured.regex", "infer.structured.json", "infer.structured.cut"))
class IgnoresTheStructure(SecondInferenceEngine):
    """Takes a structure and generates whatever comes."""

    def _seat(self, request: GenerationRequest) -> Seat:
        return super()._seat(attrs.evolve(request, structure=None))


@mutant("infer/second", killers=("infer.structured.regex",))
class EndsWhenItLikes(SecondInferenceEngine):
    """Allows the end token in the middle of a text."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        allowed = tuple(token for token in seat.forbidden if token not in seat.end_ids)
        return distribution(logits, seat.request.sampling, allowed if seat.text else seat.forbidden)


@mutant("infer/second", killers=("infer.structured.regex",), row="logprob-gap")
class LogprobsBeforeTheMask(SecondInferenceEngine):
    """Draws among the allowed tokens and reports log-probs over all."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(distribution(logits, seat.request.sampling)[token])


@mutant("infer/second", killers=("infer.structured.regex",))
class TakesTheLongestText(SecondInferenceEngine):
    """Never ends a text that could go on."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        forbidden = seat.forbidden
        if seat.text is not None and len(set(forbidden) | set(seat.end_ids)) < len(logits):
            forbidden = (*forbidden, *seat.end_ids)
        return distribution(logits, seat.request.sampling, forbidden)


@mutant("infer/second", killers=("infer.structured.json",))
class AnyStringWillDo(SecondInferenceEngine):
    """Holds an output to JSON and not to the schema."""

    def _seat(self, request: GenerationRequest) -> Seat:
        if request.structure is not None and request.structure.grammar is Grammar.JSON_SCHEMA:
            json.loads(request.structure.text)
            request = attrs.evolve(request, structure=Structure(grammar=Grammar.REGEX, text='"[a-z]{1,3}"'))
        return super()._seat(request)


@mutant("infer/second", killers=("infer.structured.company",))
class MaskOfTheNeighbour(SecondInferenceEngine):
    """Masks the tokens of a request without a structure as those of one that runs beside it."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        bound = next((other for other in self._running if other.text is not None and other.output), None)
        if seat.text is not None or bound is None or len(bound.forbidden) == len(logits):
            return super()._distribution(seat, logits)
        return distribution(logits, seat.request.sampling, bound.forbidden)


@mutant("infer/second", killers=("infer.structured.company",))
class LeavesTheMaskBehind(SecondInferenceEngine):
    """Begins a request without a structure in the mask that the last one with a structure left."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        if seat.text is not None:
            self.left = seat.forbidden
        elif not seat.output:
            return distribution(logits, seat.request.sampling, self.__dict__.get("left", ()))
        return super()._distribution(seat, logits)


@mutant("infer/second", killers=("infer.structured.cut",))
class CutIsWhole(SecondInferenceEngine):
    """Says `stop` of a text that the budget cut."""

    def _end(self, seat: Seat) -> StopReason | None:
        reason = super()._end(seat)
        return StopReason.STOP if reason is not None and seat.text is not None else reason


@mutant("infer/second", killers=("infer.structured.cut",))
class FinishesTheText(SecondInferenceEngine):
    """Goes on past the budget until the text is whole."""

    def _end(self, seat: Seat) -> StopReason | None:
        reason = super()._end(seat)
        return None if reason is StopReason.LENGTH and seat.text is not None else reason


@mutant("infer/second", killers=("infer.structured.continued",))
class BeginsTheTextAnew(SecondInferenceEngine):
    """Begins a text anew after the prior tokens of a continued request."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        if seat.text is None:
            return super()._distribution(seat, logits)
        made = [token.id for token in seat.output]
        return distribution(logits, seat.request.sampling, seat.text.forbidden(made, seat.end_ids))


@mutant("infer/second", killers=("infer.structured.broken",))
class DropsABrokenStructure(SecondInferenceEngine):
    """Generates without a structure where it cannot read the one asked for."""

    def _seat(self, request: GenerationRequest) -> Seat:
        try:
            return super()._seat(request)
        except CapabilityError:
            return super()._seat(attrs.evolve(request, structure=None))


@mutant("infer/second", killers=("infer.structured.broken",))
class DiesOfABrokenStructure(SecondInferenceEngine):
    """Refuses a structure it cannot read, and every one after it."""

    def _text(self, *arguments: Any) -> StructuredText | None:
        if self.__dict__.get("dead"):
            raise CapabilityError("no grammar engine", why="it died")
        try:
            return super()._text(*arguments)
        except CapabilityError:
            self.dead = True
            raise


@mutant("infer/second", killers=("infer.tools.parse",))
class ReadsTheFirstCallAlone(SecondInferenceEngine):
    """Reads one call of several."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        found = await super().parse_tool_calls(text, tools)
        return attrs.evolve(found, calls=found.calls[:1])


@mutant("infer/second", killers=("infer.tools.parse",))
class ArgumentsAsPython(SecondInferenceEngine):
    """Gives arguments as Python writes them, which is no JSON."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        found = await super().parse_tool_calls(text, tools)
        calls = (attrs.evolve(call, arguments=str(json.loads(call.arguments))) for call in found.calls)
        return attrs.evolve(found, calls=tuple(calls))


@mutant("infer/second", killers=("infer.tools.parse",))
class DropsWhatIsSaid(SecondInferenceEngine):
    """Drops the text before a call."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        found = await super().parse_tool_calls(text, tools)
        return attrs.evolve(found, content="" if found.calls else found.content)


@mutant("infer/second", killers=("infer.tools.none",))
class RaisesOnBrokenCalls(SecondInferenceEngine):
    """Raises where a call was begun and is broken."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        found = await super().parse_tool_calls(text, tools)
        if "<tool_call>" in text and not found.calls:
            raise ValueError("broken call")
        return found


@mutant("infer/second", killers=("infer.tools.none",))
class ReadsPlainJson(SecondInferenceEngine):
    """Takes any JSON object with a name for a call."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        try:
            found = json.loads(text)
            call = ToolCall(name=found["name"], arguments=json.dumps(found["arguments"]))
        except (ValueError, KeyError, TypeError):
            return await super().parse_tool_calls(text, tools)
        return ToolParse(content="", calls=(call,))


@mutant("infer/second", killers=("infer.tools.none",))
class SwallowsPlainText(SecondInferenceEngine):
    """Returns no content where there is no call."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        found = await super().parse_tool_calls(text, tools)
        return found if found.calls else ToolParse(content="")


@mutant("infer/second", killers=("infer.tools.pure",))
class RemembersCalls(SecondInferenceEngine):
    """Keeps the calls of texts read before, as a parser made for a stream does."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        found = await super().parse_tool_calls(text, tools)
        kept: list[ToolCall] = self.__dict__.setdefault("kept", [])
        kept += found.calls
        return attrs.evolve(found, calls=tuple(kept))


@mutant("infer/second", killers=("infer.tools.pure",))
class ReadingEndsRequests(SecondInferenceEngine):
    """Ends what runs while a text is read."""

    async def parse_tool_calls(self, text: str, tools: Tools) -> ToolParse:
        for seat in [*self._running, *self._waiting]:
            self._finish(seat, StopReason.LENGTH)
        return await super().parse_tool_calls(text, tools)
