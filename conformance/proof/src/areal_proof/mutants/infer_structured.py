"""Engines whose structured output or tool calls are broken, that drop what they do not claim, or see wrong images.

Knows: the second inference engine, its structures, tool calls and images; claims taken back.
Does not know: how it is caught.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest, Grammar, Structure
from areal_core.contract.optional import ToolCall, ToolParse
from areal_proof.mutants.infer_sampling import asked
from areal_proof.mutants.rows import Original, after, before, breaking, given, gives, row, then, without
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Slot
from areal_proof.second.infer.sampling import distribution
from areal_proof.second.vision import Picture
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/second", SecondInferenceEngine)

Tools = Sequence[Mapping[str, Any]]  # Any: as in the contract


@breaks("distribution", "infer.structured.regex")
def TakesTheLongestText(slot: Slot, logits: Tensor) -> Any:
    """Never ends a text that could go on."""
    forbidden = slot.forbidden
    if slot.text is not None and len(set(forbidden) | set(slot.end_ids)) < len(logits):
        forbidden = (*forbidden, *slot.end_ids)
    return distribution(logits, slot.request.sampling, forbidden)


@breaks("slot_for", "infer.structured.json")
def AnyStringWillDo(original: Original, request: GenerationRequest) -> Any:
    """Holds an output to JSON and not to the schema."""
    if request.structure is not None and request.structure.grammar is Grammar.JSON_SCHEMA:
        json.loads(request.structure.text)
        request = attrs.evolve(request, structure=Structure(grammar=Grammar.REGEX, text='"[a-z]{1,3}"'))
    return original(request)


@breaks("distribution", "infer.structured.company")
def MaskOfTheNeighbour(original: Original, self: SecondInferenceEngine, slot: Slot, logits: Tensor) -> Any:
    """Masks the tokens of a request without a structure as those of one that runs beside it."""
    bound = next((other for other in self.running if other.text is not None and other.output), None)
    if slot.text is not None or bound is None or len(bound.forbidden) == len(logits):
        return original()
    return distribution(logits, slot.request.sampling, bound.forbidden)


@breaks("distribution", "infer.structured.company")
def LeavesTheMaskBehind(original: Original, self: Any, slot: Slot, logits: Tensor) -> Any:
    """Begins a request without a structure in the mask that the last one with a structure left."""
    if slot.text is not None:
        self.left = slot.forbidden
    elif not slot.output:
        return distribution(logits, slot.request.sampling, self.__dict__.get("left", ()))
    return original()


@breaks("slot_for", "infer.structured.broken")
def DropsABrokenStructure(original: Original, request: GenerationRequest) -> Any:
    """Generates without a structure where it cannot read the one asked for."""
    try:
        return original()
    except CapabilityError:
        return original(attrs.evolve(request, structure=None))


@breaks("text_for", "infer.structured.broken")
def DiesOfABrokenStructure(original: Original, self: Any) -> Any:
    """Refuses a structure it cannot read, and every one after it."""
    if self.__dict__.get("dead"):
        raise CapabilityError("no grammar engine", why="it died")
    try:
        return original()
    except CapabilityError:
        self.dead = True
        raise


@breaks("parse_tool_calls", "infer.tools.none")
async def ReadsPlainJson(original: Original, text: str) -> Any:
    """Takes any JSON object with a name for a call."""
    try:
        found = json.loads(text)
        call = ToolCall(name=found["name"], arguments=json.dumps(found["arguments"]))
    except (ValueError, KeyError, TypeError):
        return await original()
    return ToolParse(content="", calls=(call,))


ROWS = breaks.rows(
    row("IgnoresTheStructure", "Takes a structure and generates whatever comes.", "infer.structured.regex",
        "infer.structured.json", "infer.structured.cut", slot_for=given(structure=None)),
    row("EndsWhenItLikes", "Allows the end token in the middle of a text.", "infer.structured.regex",
        distribution=lambda slot, logits: distribution(logits, slot.request.sampling,
            tuple(token for token in slot.forbidden if token not in slot.end_ids) if slot.text else slot.forbidden)),
    row("LogprobsBeforeTheMask", "Draws among the allowed tokens and reports log-probs over all.",
        "infer.structured.regex", row="logprob-gap",
        reported=lambda slot, token, logits: float(distribution(logits, slot.request.sampling)[token])),
    row("CutIsWhole", "Says `stop` of a text that the budget cut.", "infer.structured.cut",
        end=after(lambda result, slot: StopReason.STOP if result is not None and slot.text is not None else result)),
    row("FinishesTheText", "Goes on past the budget until the text is whole.", "infer.structured.cut",
        end=after(lambda result, slot: None if result is StopReason.LENGTH and slot.text is not None else result)),
    row("BeginsTheTextAnew", "Begins a text anew after the prior tokens of a continued request.",
        "infer.structured.continued",
        distribution=lambda original, slot, logits: original() if slot.text is None
            else distribution(logits, slot.request.sampling, slot.text.forbidden([token.id for token in slot.output],
            slot.end_ids))),
    row("ReadsTheFirstCallAlone", "Reads one call of several.", "infer.tools.parse",
        parse_tool_calls=gives(calls=lambda result: result.calls[:1])),
    row("ArgumentsAsPython", "Gives arguments as Python writes them, which is no JSON.", "infer.tools.parse",
        parse_tool_calls=gives(calls=lambda result: tuple(attrs.evolve(call,
            arguments=str(json.loads(call.arguments))) for call in result.calls))),
    row("DropsWhatIsSaid", "Drops the text before a call.", "infer.tools.parse",
        parse_tool_calls=gives(content=lambda result: "" if result.calls else result.content)),
    row("RaisesOnBrokenCalls", "Raises where a call was begun and is broken.", "infer.tools.none",
        parse_tool_calls=then(lambda result, text: ValueError("broken call") if "<tool_call>" in text
            and (not result.calls) else None)),
    row("SwallowsPlainText", "Returns no content where there is no call.", "infer.tools.none",
        parse_tool_calls=after(lambda result: result if result.calls else ToolParse(content=""))),
)  # fmt: skip


@breaks("parse_tool_calls", "infer.tools.pure")
async def RemembersCalls(original: Original, self: SecondInferenceEngine) -> Any:
    """Keeps the calls of texts read before, as a parser made for a stream does."""
    found = await original()
    kept: list[ToolCall] = self.__dict__.setdefault("kept", [])
    kept += found.calls
    return attrs.evolve(found, calls=tuple(kept))


@breaks("parse_tool_calls", "infer.tools.pure")
async def ReadingEndsRequests(original: Original, self: SecondInferenceEngine) -> Any:
    """Ends what runs while a text is read."""
    for slot in [*self.running, *self.waiting]:
        self.finish(slot, StopReason.LENGTH)
    return await original()


breaks_reference = breaking("infer/reference", ReferenceInferenceEngine)


class _Neutral(SecondInferenceEngine):
    """Drops some of what a request asks for; base of the mutants below."""

    neutral: ClassVar[Mapping[str, Any]] = {}  # Any: sampling parameters

    def slot_for(self, request: GenerationRequest) -> Slot:
        return super().slot_for(asked(request, **self.neutral))


breaks_refuse = breaking("infer/second", _Neutral)
REFUSE_ROWS = breaks_refuse.rows(
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
        slot_for=before(lambda request: CapabilityError("penalties are not claimed", why="this engine cannot")
            if max(request.sampling.frequency_penalty, request.sampling.presence_penalty) > 0 else None)),
    row("DropsTheRepetitionPenalty", "Does not claim a repetition penalty and samples without it.",
        "infer.refuse.repetition_penalty", claims=without("sampling.repetition_penalty"),
        neutral={"repetition_penalty": 1.0}),
)  # fmt: skip


REFERENCE_ROWS = breaks_reference.rows(
    row("DropsTheLayout", "Claims no parallelism and starts on one device whatever the layout.",
        "infer.refuse.tensor_parallel", "infer.refuse.pipeline_parallel", start=given(layout=dict)),
)  # fmt: skip


SECOND_ROWS = breaks.rows(
    row("DropsTheStructure", "Does not claim structured output and generates whatever comes.",
        "infer.refuse.structured", claims=without("sampling.structured"), slot_for=given(structure=None)),
    row("ReadsNoCalls", "Does not claim to read tool calls and finds none anywhere.", "infer.refuse.tools",
        claims=without("tools.parse"), parse_tool_calls=lambda text: ToolParse(content=text)),
    row("ScoresZeros", "Does not claim scoring and scores zeros.", "infer.refuse.scoring", claims=without("scoring"),
        score=lambda input_ids: [0.0 for _ in input_ids]),
    row("SleepDoesNothing", "Does not claim sleep and takes the call for nothing.", "infer.refuse.sleep",
        row="sleep-is-real", claims=without("memory.sleep"), sleep=lambda self: self.require()),
    row("DropsTheAdapter", "Does not claim adapters and serves the base weights to requests that name one.",
        "infer.refuse.adapters", claims=without("lora.adapters"), slot_for=given(adapter="")),
    row("DropsImages", "Does not claim images and answers as if there were none.", "infer.refuse.extras",
        claims=without("images"), slot_for=given(extras=dict)),
    row("RefusesWithoutAReason", "Does not claim top_p and refuses it with NotImplementedError.", "infer.refuse.top_p",
        claims=without("sampling.top_p"),
        slot_for=before(lambda request: NotImplementedError if request.sampling.top_p < 1.0 else None)),
    row("TracesZeros", "Does not claim to trace experts and returns a trace of zeros.", "infer.refuse.experts",
        row="expert-replay", claims=without("experts.trace"),
        next_logits=after(lambda result: (result[0], None if result[1] is None else torch.zeros_like(result[1])))),
)  # fmt: skip


class _Looks(SecondInferenceEngine):
    """Changes the images of a slot after the request was checked."""

    def slot_for(self, request: GenerationRequest) -> Slot:
        slot = super().slot_for(request)
        slot.pictures = self._looked(slot, slot.pictures)
        return slot

    def _looked(self, slot: Slot, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return pictures


breaks_images = breaking("infer/second", _Looks)


@breaks_images("_looked", "infer.images.truth")
def CountsImagesAsOutput(slot: Slot, pictures: tuple[Picture, ...]) -> Any:
    """Takes the tokens of images off the budget."""
    slot.limit = max(1, slot.limit - sum(picture.num_tokens for picture in pictures))
    return pictures


IMAGES_SECOND_ROWS = breaks.rows(
    row("KeepsPromptsByTokens", "Finds a kept prompt by its tokens alone: another image gets the answer of the first.",
        "infer.images.not_by_tokens",
        prefix_key=lambda self, slot: (self.version, slot.adapter, *slot.request.input_ids)),
)  # fmt: skip


@breaks("commit_weights", "infer.images.follows_updates")
async def SeesWithTheFirstTower(original: Original, self: SecondInferenceEngine) -> None:
    """Goes on looking at images with the vision tower of the folder, whatever was committed."""
    await original()
    old = self.require().weights
    self.weights = {
        name: old[name] if name.startswith("visual.") else tensor for name, tensor in self.require_weights().items()
    }


IMAGES_ROWS = breaks_images.rows(
    row("SeesBlankImages", "Makes room for an image and does not look at it.", "infer.images.truth",
        _looked=lambda pictures: tuple(attrs.evolve(picture, patches=torch.zeros_like(picture.patches))
            for picture in pictures)),
    row("LeavesImagesOut", "Checks images and computes the prompt with one placeholder each, as if it were text.",
        "infer.images.truth", _looked=lambda: ()),
    row("SwapsHeightAndWidth", "Takes the rows of an image for its columns.", "infer.images.truth",
        _looked=lambda pictures: tuple(attrs.evolve(picture, rows=picture.columns, columns=picture.rows)
            for picture in pictures)),
    row("ShowsImagesInReverse", "Puts several images in the wrong order.", "infer.images.order",
        _looked=lambda pictures: pictures[::-1]),
    row("ShowsTheFirstImageOnly", "Shows the first image at every placeholder.", "infer.images.order",
        _looked=lambda pictures: pictures[:1] * len(pictures)),
    row("ForgetsImagesWhenContinued", "Shows nothing in place of the images of a continued request.",
        "infer.images.continued",
        _looked=lambda slot, pictures: pictures if not slot.request.num_prior
            else tuple(attrs.evolve(picture, patches=torch.zeros_like(picture.patches)) for picture in pictures)),
)  # fmt: skip


class _Lenient(SecondInferenceEngine):
    """Mends a request before it is checked."""

    async def generate(self, request: GenerationRequest) -> Generation:
        vision, images = self.require().shape.vision, tuple(request.extras.get(IMAGES, ()))
        extras: Mapping[str, Any] = dict(request.extras)
        if vision is None:
            extras = {name: value for name, value in extras.items() if name != IMAGES}
        else:
            count = request.input_ids.count(vision.image_token)
            extras = {**extras, IMAGES: self._mended(images, count)} if images or count else extras
        return await super().generate(attrs.evolve(request, extras=extras))

    def _mended(self, images: tuple[bytes, ...], count: int) -> tuple[bytes, ...]:
        return images


breaks_lenient = breaking("infer/second", _Lenient)
LENIENT_ROWS = breaks_lenient.rows(
    row("DropsImagesOfTextModels", "Serves a model of text and passes over images.", "infer.images.text_model"),
    row("PassesOverSpareImages", "Drops images that have no placeholder.", "infer.images.refused",
        _mended=lambda images, count: images[:count]),
    row("ShowsTheLastImageAgain", "Fills placeholders that have no image with the last one there is.",
        "infer.images.refused", _mended=lambda images, count: (*images, *images[-1:] * (count - len(images)))),
)  # fmt: skip


@breaks_lenient("slot_for", "infer.images.refused")
def TakesTornFiles(original: Original) -> Any:
    """Shows as much of an image as there is, and grey for the rest."""
    from PIL import ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES, before = True, ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        return original()
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
