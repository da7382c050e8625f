"""A fingerprint depends on every byte, the dtype and the shape, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_core.weights.tensors import fingerprint, raw_bytes


@given(values=st.binary(min_size=1, max_size=300), place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_flipped_bit_changes_the_fingerprint(values: bytes, place: int, bit: int) -> None:
    """No single bit can flip unnoticed."""
    tensor = torch.frombuffer(bytearray(values), dtype=torch.uint8)
    flipped = tensor.clone()
    flipped[place % len(values)] ^= 1 << bit

    assert fingerprint(tensor) != fingerprint(flipped)
    assert fingerprint(tensor) == fingerprint(tensor.clone())


def test_dtype_and_shape_are_part_of_it() -> None:
    """The same bytes under another dtype or shape are other weights."""
    zeros = torch.zeros(8, dtype=torch.float32)
    others = [zeros.reshape(2, 4), zeros.reshape(4, 2), zeros.view(torch.int32), torch.zeros(16, dtype=torch.bfloat16)]

    assert len({fingerprint(tensor) for tensor in (zeros, *others)}) == 5


def test_strides_are_not_part_of_it() -> None:
    """A transposed view has the fingerprint of its contiguous copy."""
    view = torch.arange(12.0).reshape(3, 4).t()

    assert fingerprint(view) == fingerprint(view.contiguous())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.float8_e4m3fn, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_every_dtype_and_shape_has_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Scalars and empty tensors included: 32 hexadecimal digits."""
    digits = fingerprint(torch.ones(shape).to(dtype))

    assert len(digits) == 32
    assert int(digits, 16) >= 0


def test_it_does_not_copy_what_is_contiguous() -> None:
    """The bytes hashed are the tensor's own memory."""
    tensor = torch.arange(10.0)

    assert raw_bytes(tensor).data_ptr() == tensor.data_ptr()


def test_it_is_stable_across_releases() -> None:
    """A stored fingerprint can be compared with one made later: the digits are fixed."""
    assert fingerprint(torch.tensor([1.0, -0.0])) == "5f75d1cd734b26352a97c5b46f48eb06"
