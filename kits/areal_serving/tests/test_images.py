"""Images of a request, before an engine sees them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from attrs import evolve

from areal_core.contract.errors import ArealError, BatchError, CapabilityError
from areal_core.contract.inference import IMAGES, GenerationRequest
from areal_serving.images import check_images, data_url, kind_of
from areal_torch.testing.serving import ask

PNG, JPEG = b"\x89PNG\r\n\x1a\n0123", b"\xff\xd8\xff\xe0\x00\x10"
PLACEHOLDER = 66


def showing(*ids: int, images: Any) -> GenerationRequest:
    return evolve(ask(*ids), extras={IMAGES: images})


def test_as_many_images_as_placeholders_are_taken() -> None:
    """PNG and JPEG files, one per placeholder; none for a prompt without."""
    check_images(showing(5, PLACEHOLDER, 7, PLACEHOLDER, images=(PNG, JPEG)), PLACEHOLDER)
    check_images(ask(5, 7), PLACEHOLDER)
    check_images(ask(5, PLACEHOLDER), None)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (showing(5, PLACEHOLDER, images=(PNG, PNG)), "2 images for 1 placeholders"),
        (showing(5, 7, images=(PNG,)), "1 images for 0 placeholders"),
        (ask(5, PLACEHOLDER), "0 images for 1 placeholders"),
        (showing(PLACEHOLDER, images=(b"GIF89a",)), "image 0 of request 'r' is neither"),
        (showing(PLACEHOLDER, images=(b"",)), "neither PNG nor JPEG"),
        (showing(PLACEHOLDER, images=("a.png",)), "it is str"),
    ],
)
def test_others_are_refused(request_: GenerationRequest, words: str) -> None:
    """With numbers, or with what the file begins with."""
    with pytest.raises(BatchError) as caught:
        check_images(request_, PLACEHOLDER)

    assert words in str(caught.value)
    assert isinstance(caught.value, ArealError) and caught.value.fix


def test_a_model_without_images_refuses_them() -> None:
    """Its prompt would be computed as if there were none."""
    with pytest.raises(CapabilityError, match="image_token_id"):
        check_images(showing(5, 7, images=(PNG,)), None)


def test_a_data_url_says_the_kind_and_holds_the_bytes() -> None:
    """Servers take whatever stands behind the comma, and look for files where there is no kind."""
    assert data_url(JPEG) == "data:image/jpeg;base64," + base64.b64encode(JPEG).decode()
    assert (kind_of(PNG), kind_of(b"RIFF")) == ("image/png", None)
