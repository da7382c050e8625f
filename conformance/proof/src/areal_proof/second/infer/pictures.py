"""Files of images, made ready for the vision tower.

Knows: preprocessor_config.json, how a file becomes patches, what is refused.
Does not know: weights.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.inference import IMAGES, GenerationRequest
from areal_proof.second.vision import Picture, Vision

if TYPE_CHECKING:
    from areal_proof.second.infer.loading import Loaded

FORMATS = ("PNG", "JPEG")


def pictures_of(request: GenerationRequest, loaded: Loaded) -> tuple[Picture, ...]:
    """Return a request's images in order.

    Raises:
        CapabilityError: the model takes none.
        BatchError: another number than of placeholders, or a file that is no image.
    """
    images, vision, named = request.extras.get(IMAGES, ()), loaded.shape.vision, f"request {request.request_id!r}"
    if vision is None:
        if images:
            raise CapabilityError(
                f"{named} carries {len(images)} images", why="the model has no vision tower", fix="serve one that has"
            )
        return ()
    count = request.input_ids.count(vision.image_token)
    if count != len(images):
        raise BatchError(
            f"{named} carries {len(images)} images for {count} placeholders",
            why=f"every token {vision.image_token} stands for one",
            fix="send one placeholder per image",
        )
    config = json.loads((Path(loaded.spec.model_path) / "preprocessor_config.json").read_text()) if images else {}
    return tuple(_picture(image, vision, config, f"image {place} of {named}") for place, image in enumerate(images))


def _picture(image: object, vision: Vision, config: Mapping[str, Any], named: str) -> Picture:  # Any: JSON
    from PIL import Image

    if not isinstance(image, bytes):
        raise BatchError(f"{named} is {type(image).__name__}", why="the bytes of a file are asked for")
    try:
        opened = Image.open(io.BytesIO(image), formats=FORMATS).convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise BatchError(f"{named} cannot be read", why=str(error), fix="give a whole PNG or JPEG file") from error
    side = vision.patch * vision.merge
    width, height = _fitting(opened.width, opened.height, side, config["size"])
    if (width, height) != opened.size:
        opened = opened.resize((width, height), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(opened)).float() / 255
    pixels = (pixels - torch.tensor(config["image_mean"])) / torch.tensor(config["image_std"])
    rows, columns, merge, patch = height // side, width // side, vision.merge, vision.patch
    blocks = pixels.view(rows, merge, patch, columns, merge, patch, 3).permute(0, 3, 1, 4, 6, 2, 5)
    still = blocks.reshape(-1, 3, 1, patch, patch).expand(-1, -1, vision.frames, -1, -1)
    return Picture(patches=still.flatten(1), rows=rows, columns=columns)


def _fitting(width: int, height: int, side: int, size: Mapping[str, int]) -> tuple[int, int]:
    """Return the nearest sides that are whole tokens, scaled into the smallest and largest number of pixels."""
    nearest = tuple(side * max(1, round(length / side)) for length in (width, height))
    area = nearest[0] * nearest[1]
    if size["shortest_edge"] <= area <= size["longest_edge"]:
        return nearest[0], nearest[1]
    larger = area < size["shortest_edge"]
    scale = math.sqrt(size["shortest_edge" if larger else "longest_edge"] / (width * height))
    whole = math.ceil if larger else math.floor
    found = tuple(side * max(1, whole(length * scale / side)) for length in (width, height))
    return found[0], found[1]
