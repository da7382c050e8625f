"""Differences of tensors: any two states, bit for bit, never larger than the whole; damaged ones are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.weights.tensors import raw_bytes
from areal_local.transports import delta

DTYPES = [torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.bool, torch.complex128, torch.float8_e4m3fn]


def _noise(size: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def _changed(before: Tensor, itemsize: int, places: list[int]) -> Tensor:
    """Return other bytes: every element named has its last byte flipped."""
    after = before.clone()
    for place in places:
        after[place * itemsize + itemsize - 1] ^= 0x80
    return after


@given(
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
    count=st.integers(0, 70_000),
    places=st.lists(st.integers(0, 69_999), max_size=40),
)
@settings(max_examples=80, deadline=None)
def test_any_change_is_made_exactly(itemsize: int, count: int, places: list[int]) -> None:
    """Elements of any size, changed anywhere: the state after `apply` is the new one, bit for bit."""
    before = _noise(count * itemsize, 1)
    after = _changed(before, itemsize, sorted({place for place in places if place < count}))

    difference = delta.encode(before, after, itemsize)
    state = before.clone()
    if difference.numel() < after.numel() or not after.numel():
        delta.apply(state, difference, itemsize)
    else:
        state = difference

    assert torch.equal(state, after)
    assert difference.numel() <= after.numel()


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 65_534, 65_535, 65_536, 70_000])
@pytest.mark.parametrize("count", [1, 3])
def test_gaps_of_every_width_are_kept(gap: int, count: int) -> None:
    """One byte, two bytes and more; a gap as large as the mark of a long one is no mark."""
    places = [number * (gap + 1) + gap for number in range(count)]
    before = _noise(2 * 220_000, 2)
    after = _changed(before, 2, places)

    difference = delta.encode(before, after, 2)
    state = before.clone()
    delta.apply(state, difference, 2)

    assert torch.equal(state, after)
    assert difference.numel() <= 24 + count * (8 + 2 + 2)


def test_changes_beyond_a_block_are_found() -> None:
    """Elements are compared a million at a time; the first and the last of each count."""
    before = torch.zeros(2 * (2 * delta._BLOCK + 5), dtype=torch.uint8)
    after = _changed(before, 2, [0, delta._BLOCK - 1, delta._BLOCK, 2 * delta._BLOCK - 1, 2 * delta._BLOCK + 4])

    delta.apply(before, delta.encode(before, after, 2), 2)

    assert torch.equal(before, after)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_bits(dtype: torch.dtype) -> None:
    """-0.0 and 0.0 differ, and a NaN equals itself: what is compared are bits."""
    before = torch.zeros(64, dtype=dtype)
    after = before.clone()
    raw_bytes(after)[-1] = 0x01 if dtype is torch.bool else 0x80

    difference = delta.encode(raw_bytes(before), raw_bytes(after), dtype.itemsize)
    delta.apply(raw_bytes(before), difference, dtype.itemsize)

    assert difference.numel()
    assert torch.equal(raw_bytes(before), raw_bytes(after))
    assert not delta.encode(raw_bytes(after), raw_bytes(after), dtype.itemsize).numel()


def test_a_few_changes_of_bfloat16_take_three_bytes_each() -> None:
    """At 2.8% of the elements, what a learning rate of 1e-6 changes, a difference is a tenth of the whole or less."""
    before = _noise(2 * 1_000_000, 3)
    places = (torch.rand(1_000_000, generator=torch.Generator().manual_seed(4)) < 0.028).nonzero().reshape(-1)
    after = before.clone()
    after[2 * places] ^= 1

    difference = delta.encode(before, after, 2)

    assert difference.numel() < 3.1 * len(places) < 0.1 * after.numel()


def test_a_difference_that_would_not_be_smaller_is_the_whole() -> None:
    """Where most elements changed, `encode` returns the new state itself."""
    before, after = _noise(2000, 5), _noise(2000, 6)

    assert delta.encode(before, after, 2) is after


def test_damaged_differences_are_refused_and_change_nothing() -> None:
    """Any cut, and any byte of head or long gaps, is refused or gives a state as long: nothing is written elsewhere."""
    before = _noise(2 * 1000, 7)
    whole = delta.encode(before, _changed(before, 2, [3, 400, 401, 999]), 2)
    for cut in (1, 23, 24, whole.numel() - 1):
        with pytest.raises(WeightSyncError, match="makes no sense"):
            delta.apply(before.clone(), whole[:cut].clone(), 2)
    with pytest.raises(WeightSyncError, match="makes no sense"):
        delta.apply(before.clone(), torch.cat([whole, whole[:1]]), 2)
    for place in range(24):
        damaged = whole.clone()
        damaged[place] ^= 0xFF
        state = before.clone()
        with pytest.raises(WeightSyncError, match="makes no sense"):
            delta.apply(state, damaged, 2)
        assert torch.equal(state, before)
    with pytest.raises(WeightSyncError, match="ends at element 999 of 999"):
        delta.apply(before[:1998].clone(), delta.encode(before, _changed(before, 2, [999]), 2), 2)


@pytest.mark.parametrize("gap", [-1, 10**9])
def test_a_long_gap_that_leads_elsewhere_is_refused(gap: int) -> None:
    """A gap of eight bytes could lead anywhere in memory."""
    before = _noise(2 * 80_000, 8)
    damaged = delta.encode(before, _changed(before, 2, [70_000]), 2)
    damaged[24:32] = torch.tensor([gap]).view(torch.uint8)

    with pytest.raises(WeightSyncError, match="long gaps"):
        delta.apply(before, damaged, 2)
