"""Images of a request: as many as placeholders, each of a kind the contract names.

Knows: the model's placeholder, how PNG and JPEG files begin.
Does not know: how an image is decoded, or how many tokens it takes; that is the engine's.
"""

from __future__ import annotations

import base64

from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.inference import IMAGES, GenerationRequest

_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def check_images(request: GenerationRequest, placeholder: int | None) -> None:
    """Check a request's images against its placeholders; `placeholder` is None where the model takes no images.

    Raises:
        CapabilityError: there are images, and the model takes none.
        BatchError: more or fewer of them than placeholders, or one that is neither PNG nor JPEG.
    """
    named, images = f"request {request.request_id!r}", request.extras.get(IMAGES, ())
    if placeholder is None:
        if images:
            raise CapabilityError(
                f"{named} carries {len(images)} images",
                why="config.json of the model names no image_token_id: it accepts none",
                fix="serve a vision-language model, or remove the images from the request",
            )
        return
    count = request.input_ids.count(placeholder)
    if count != len(images):
        raise BatchError(
            f"{named} carries {len(images)} images for {count} placeholders",
            why=f"every token {placeholder} of input_ids, the model's image_token_id, stands for one image",
            fix="send one placeholder per image, in their order, and the images again with a continued request",
        )
    for number, image in enumerate(images):
        if kind_of(image) is None:
            raise BatchError(
                f"image {number} of {named} is neither PNG nor JPEG",
                why=f"it begins with {image[:8]!r}" if isinstance(image, bytes) else f"it is {type(image).__name__}",
                fix="give the bytes of a whole file",
            )


def kind_of(image: object) -> str | None:
    """Return the media type of a file by its first bytes, None if it is neither PNG nor JPEG."""
    if not isinstance(image, bytes):
        return None
    return next((kind for beginning, kind in _KINDS.items() if image.startswith(beginning)), None)


def data_url(image: bytes) -> str:
    """Return a checked image as servers take it in JSON."""
    return f"data:{kind_of(image)};base64,{base64.b64encode(image).decode()}"
