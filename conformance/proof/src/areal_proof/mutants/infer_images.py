"""Engines that look at the wrong images, or at none.

Knows: the second inference engine.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from areal_core.contract.inference import IMAGES, Generation, GenerationRequest
from areal_proof.mutants.rows import Original, breaking, row
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.vision import Picture

breaks_second = breaking("infer/second", SecondInferenceEngine)


class _Looks(SecondInferenceEngine):
    """Changes the images of a seat after the request was checked."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        seat.pictures = self._looked(seat, seat.pictures)
        return seat

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return pictures


breaks = breaking("infer/second", _Looks)


@breaks("_looked", "infer.images.truth")
def CountsImagesAsOutput(seat: Seat, pictures: tuple[Picture, ...]) -> Any:
    """Takes the tokens of images off the budget."""
    seat.limit = max(1, seat.limit - sum(picture.num_tokens for picture in pictures))
    return pictures


SECOND_ROWS = breaks_second.rows(
    row("KeepsPromptsByTokens", "Finds a kept prompt by its tokens alone: another image gets the answer of the first.",
        "infer.images.not_by_tokens",
        _prefix_key=lambda self, seat: (self._version, id(seat.adapter), *seat.request.input_ids)),
)  # fmt: skip


@breaks_second("commit_weights", "infer.images.follows_updates")
async def SeesWithTheFirstTower(original: Original, self: SecondInferenceEngine) -> None:
    """Goes on looking at images with the vision tower of the folder, whatever was committed."""
    await original()
    old = self._require().weights
    self._weights = {
        name: old[name] if name.startswith("visual.") else tensor for name, tensor in self._require_weights().items()
    }


ROWS = breaks.rows(
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
        _looked=lambda seat, pictures: pictures if not seat.request.num_prior
            else tuple(attrs.evolve(picture, patches=torch.zeros_like(picture.patches)) for picture in pictures)),
)  # fmt: skip


class _Lenient(SecondInferenceEngine):
    """Mends a request before it is checked."""

    async def generate(self, request: GenerationRequest) -> Generation:
        vision, images = self._require().shape.vision, tuple(request.extras.get(IMAGES, ()))
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


@breaks_lenient("_seat", "infer.images.refused")
def TakesTornFiles(original: Original) -> Any:
    """Shows as much of an image as there is, and grey for the rest."""
    from PIL import ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES, before = True, ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        return original()
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
