"""Images of a trajectory made ready for training: as many tokens as each takes, and what the model's forward is given.

Knows: the folder's image processor, the model's placeholder, how columns grow with it.
Does not know: how a model reads patches (`areal_torch`), or where rows hold their images (`image_files`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from areal_core.config.model_folder import inspect_model
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES, Trajectory
from areal_core.contract.errors import BatchError, ModelError
from areal_torch.image_files import decoded
from areal_torch.image_plan import check_processor
from areal_torch.single_flight_cache import SingleFlightCache

KEPT_BYTES = 1 << 30
"""Patches of the last images that are kept, for the other members of their groups."""


@frozen(kw_only=True, eq=False)
class Patches:
    """One image as the model takes it: values float32 [patches, width], grid int64 [1, 3], and its number of tokens."""

    values: Tensor
    grid: Tensor
    num_tokens: int


class ImagePreparer:
    """Prepares the trajectories of one model. One per run; threads may share it."""

    def __init__(self, processor: Any, placeholder: int, *, max_tokens: int = 0) -> None:
        """Hold an image processor of transformers (Any: not typed here) and the id of the model's placeholder.

        Args:
            max_tokens: the longest trajectory that may come out; 0 for any.
        """
        self._processor = processor
        self._placeholder = placeholder
        self._max_tokens = max_tokens
        self._kept: SingleFlightCache[Patches] = SingleFlightCache(KEPT_BYTES, lambda patches: patches.values.nbytes)

    @classmethod
    def of(cls, folder: Path, *, max_tokens: int = 0) -> ImagePreparer | None:
        """Return the preparer of a model folder, None if the model takes no images. Runs no code of the folder.

        Raises:
            ModelError: of a kind images are not prepared for, or without an image processor that loads.
            EngineMissing: pillow is not installed.
        """
        model = inspect_model(str(folder), images=True)
        if model.image_token_id is None:
            return None
        check_processor(model)
        from transformers import AutoImageProcessor

        try:
            processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(
                f"the image processor of {folder} cannot be loaded",
                why=str(error).splitlines()[0] if str(error) else repr(error),
                fix="copy the file from where the model came from, or save_pretrained(DIR) of its AutoImageProcessor",
            ) from error
        return cls(processor, model.image_token_id, max_tokens=max_tokens)

    def prepare(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with its images as media, and every placeholder as many times as its image takes.

        Columns of the tokens that are added repeat those of the placeholder, which the policy did not make: not
        trained on, log-prob 0, version -1. A placeholder that the policy generated is a token like any other. The
        column `IMAGE_TOKENS` is added to every trajectory, without images too. One prepared before comes back as it is.

        Raises:
            BatchError: more or fewer placeholders than images, two side by side, an image that cannot be read, or
                more tokens than there may be.
        """
        if IMAGE_TOKENS in trajectory.token_extras:
            return trajectory
        stands = (trajectory.input_ids == self._placeholder) & ~trajectory.loss_mask
        places = stands.nonzero().flatten()
        self._check(places, len(trajectory.images))
        found = [self._patches(image, number) for number, image in enumerate(trajectory.images)]
        counts = torch.ones(len(trajectory), dtype=torch.int64)
        counts[places] = torch.tensor([patches.num_tokens for patches in found], dtype=torch.int64)
        source = torch.arange(len(trajectory)).repeat_interleave(counts)
        self._check_length(len(source), len(trajectory), len(found))
        extras = {**trajectory.token_extras, IMAGE_TOKENS: stands}
        return evolve(
            trajectory,
            input_ids=trajectory.input_ids[source],
            loss_mask=trajectory.loss_mask[source],
            logprobs=trajectory.logprobs[source],
            versions=trajectory.versions[source],
            token_extras={name: column[source] for name, column in extras.items()},
            images=(),
            media={**trajectory.media, **_media(found)},
        )

    def _check(self, places: Tensor, num_images: int) -> None:
        if len(places) != num_images:
            raise BatchError(
                f"a trajectory holds {num_images} images for {len(places)} placeholders",
                why=f"every token {self._placeholder} that the policy did not generate stands for one image, in order",
                fix="give the trajectory the images of its requests: from_generation(.., images=images)",
            )
        if bool((places.diff() == 1).any()):
            raise BatchError(
                "two image placeholders are adjacent in a trajectory",
                why="the boundary between the two images would be lost",
                fix="surround each with the tokens of the chat template, <|vision_start|> and <|vision_end|>",
            )

    def _check_length(self, length: int, before: int, num_images: int) -> None:
        if self._max_tokens and length > self._max_tokens:
            raise BatchError(
                f"a trajectory of {before} tokens has {length} with its {num_images} images, "
                f"the limit is {self._max_tokens}",
                why="it must fit into one micro-batch of every training role, and into the model's positions",
                fix="raise max_tokens_per_microbatch, or give smaller images: the image processor's `size` in the "
                "model folder bounds them",
            )

    def _patches(self, image: bytes, number: int) -> Patches:
        return self._kept.get(hashlib.blake2b(image, digest_size=16).digest(), lambda: self._processed(image, number))

    def _processed(self, image: bytes, number: int) -> Patches:
        try:
            made = self._processor(images=[decoded(image)], return_tensors="pt")
        except ValueError as error:
            raise BatchError(
                f"image {number} of a trajectory cannot be read", why=str(error), fix="give a whole PNG or JPEG file"
            ) from error
        values, grid = made[PIXEL_VALUES].to(torch.float32), made[IMAGE_GRID].to(torch.int64)
        return Patches(values=values, grid=grid, num_tokens=int(grid.prod()) // self._processor.merge_size**2)


def _media(found: list[Patches]) -> dict[str, Tensor]:
    if not found:
        return {}
    if len(found) == 1:  # members of a group share these
        return {PIXEL_VALUES: found[0].values, IMAGE_GRID: found[0].grid}
    return {
        PIXEL_VALUES: torch.cat([patches.values for patches in found]),
        IMAGE_GRID: torch.cat([patches.grid for patches in found]),
    }
