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
from areal_proof.mutants import mutant
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.vision import Picture


class _Looks(SecondInferenceEngine):
    """Changes the images of a seat after the request was checked."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        seat.pictures = self._looked(seat, seat.pictures)
        return seat

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return pictures


@mutant("infer/second", killers=("infer.images.truth",))
class SeesBlankImages(_Looks):
    """Makes room for an image and does not look at it."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return tuple(attrs.evolve(picture, patches=torch.zeros_like(picture.patches)) for picture in pictures)


@mutant("infer/second", killers=("infer.images.truth",))
class LeavesImagesOut(_Looks):
    """Checks images and computes the prompt with one placeholder each, as if it were text."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return ()


@mutant("infer/second", killers=("infer.images.truth",))
class SwapsHeightAndWidth(_Looks):
    """Takes the rows of an image for its columns."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return tuple(attrs.evolve(picture, rows=picture.columns, columns=picture.rows) for picture in pictures)


@mutant("infer/second", killers=("infer.images.truth",))
class CountsImagesAsOutput(_Looks):
    """Takes the tokens of images off the budget."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        seat.limit = max(1, seat.limit - sum(picture.num_tokens for picture in pictures))
        return pictures


@mutant("infer/second", killers=("infer.images.order",))
class ShowsImagesInReverse(_Looks):
    """Puts several images in the wrong order."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return pictures[::-1]


@mutant("infer/second", killers=("infer.images.order",))
class ShowsTheFirstImageOnly(_Looks):
    """Shows the first image at every placeholder."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        return pictures[:1] * len(pictures)


@mutant("infer/second", killers=("infer.images.not_by_tokens",))
class KeepsPromptsByTokens(SecondInferenceEngine):
    """Finds a kept prompt by its tokens alone: another image gets the answer of the first."""

    def _prefix_key(self, seat: Seat) -> tuple[object, ...]:
        return (self._version, id(seat.adapter), *seat.request.input_ids)


@mutant("infer/second", killers=("infer.images.follows_updates",))
class SeesWithTheFirstTower(SecondInferenceEngine):
    """Goes on looking at images with the vision tower of the folder, whatever was committed."""

    async def commit_weights(self, version: int) -> None:
        await super().commit_weights(version)
        old = self._require().weights
        self._weights = {
            name: old[name] if name.startswith("visual.") else tensor
            for name, tensor in self._require_weights().items()
        }


@mutant("infer/second", killers=("infer.images.continued",))
class ForgetsImagesWhenContinued(_Looks):
    """Shows nothing in place of the images of a continued request."""

    def _looked(self, seat: Seat, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        if not seat.request.num_prior:
            return pictures
        return tuple(attrs.evolve(picture, patches=torch.zeros_like(picture.patches)) for picture in pictures)


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


@mutant("infer/second", killers=("infer.images.text_model",))
class DropsImagesOfTextModels(_Lenient):
    """Serves a model of text and passes over images."""


@mutant("infer/second", killers=("infer.images.refused",))
class PassesOverSpareImages(_Lenient):
    """Drops images that have no placeholder."""

    def _mended(self, images: tuple[bytes, ...], count: int) -> tuple[bytes, ...]:
        return images[:count]


@mutant("infer/second", killers=("infer.images.refused",))
class ShowsTheLastImageAgain(_Lenient):
    """Fills placeholders that have no image with the last one there is."""

    def _mended(self, images: tuple[bytes, ...], count: int) -> tuple[bytes, ...]:
        return (*images, *images[-1:] * (count - len(images)))


@mutant("infer/second", killers=("infer.images.refused",))
class TakesTornFiles(_Lenient):
    """Shows as much of an image as there is, and grey for the rest."""

    def _seat(self, request: GenerationRequest) -> Seat:
        from PIL import ImageFile

        ImageFile.LOAD_TRUNCATED_IMAGES, before = True, ImageFile.LOAD_TRUNCATED_IMAGES
        try:
            return super()._seat(request)
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before
