"""Whole tensors from what ranks hold, however a layer cuts them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from areal_sglang.inside.parts import joined

WHOLE = torch.arange(24.0).view(6, 4)


@pytest.mark.parametrize(
    "parts",
    [
        [WHOLE],
        [WHOLE, WHOLE],
        list(WHOLE.chunk(2, 0)),
        list(WHOLE.chunk(2, 1)),
        list(WHOLE.split([4, 2], 0)),
        [part for part in WHOLE.chunk(2, 0) for _ in range(2)],
    ],
    ids=["one", "copies", "outputs", "inputs", "uneven", "fewer heads than ranks"],
)
def test_parts_make_up_the_whole(parts: list[Tensor]) -> None:
    """By outputs, by inputs, in copies."""
    assert torch.equal(WHOLE, joined([{"w": part} for part in parts], {"w": (6, 4)})["w"])


def test_a_missing_part_is_an_error() -> None:
    """A rank that left out rows."""
    first, last = WHOLE.chunk(2, 0)

    with pytest.raises(ValueError, match="ranks hold"):
        joined([{"w": first}, {"w": last[:2]}], {"w": (6, 4)})


def test_copies_that_differ_are_an_error() -> None:
    """A rank that was left behind."""
    with pytest.raises(ValueError, match="different bytes"):
        joined([{"w": WHOLE}, {"w": WHOLE + 1}], {"w": (6, 4)})
