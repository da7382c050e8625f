"""Tensors as plain memory and back, without a copy wherever the memory allows it.

Knows: which dtypes travel, and when a buffer can be used in place.
Does not know: messages (`codec`) or sockets.
"""

from __future__ import annotations

import math
from reprlib import repr as brief

import torch
from torch import Tensor

from areal_core.contract.errors import CodecError

_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in (*_INTEGERS, *_FLOATS)}
"""Name -> dtype, for every dtype that travels."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_DIMS = 64  # as in NumPy; the product of very many lengths would take minutes
_SIZES = {name: torch.empty(0, dtype=dtype).element_size() for name, dtype in DTYPES.items()}


def dtype_name(tensor: Tensor) -> str:
    """Return the name of the tensor's dtype.

    Raises:
        CodecError: a dtype that does not travel.
    """
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise CodecError(f"a tensor of {tensor.dtype} does not travel", why=f"these do: {', '.join(DTYPES)}")
    return name


def memory(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in row-major order; a view unless it is strided or on a device.

    Raises:
        CodecError: the tensor is sparse, quantized or has no storage.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise CodecError(f"a {tensor.layout} tensor on {tensor.device} does not travel", fix="make it dense")
    if tensor.numel() == 0:
        return memoryview(b"")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    octets: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
    return octets


def from_memory(frame: bytes | memoryview, dtype: str, shape: list[int]) -> Tensor:
    """Return the tensor whose bytes these are; it shares writable aligned memory and copies other.

    Raises:
        CodecError: an unknown dtype, a shape that is none, or a frame of the wrong size.
    """
    size = _SIZES.get(dtype)
    if size is None:
        raise CodecError(f"a tensor of dtype {brief(dtype)} arrived", why=f"these travel: {', '.join(DTYPES)}")
    if type(shape) is not list or len(shape) > _MAX_DIMS or not all(type(one) is int and one >= 0 for one in shape):
        raise CodecError(f"a tensor of shape {brief(shape)} arrived", why=f"a shape is at most {_MAX_DIMS} lengths")
    num_bytes = memoryview(frame).nbytes
    if math.prod(shape) * size != num_bytes:
        raise CodecError(f"a tensor of {dtype} {shape} arrived in {num_bytes} bytes")
    if num_bytes == 0:
        return torch.empty(shape, dtype=DTYPES[dtype])
    tensor = torch.frombuffer(_writable(frame), dtype=torch.uint8)
    if tensor.data_ptr() % size:
        tensor = tensor.clone()
    return tensor.view(DTYPES[dtype]).view(shape)


def _writable(frame: bytes | memoryview) -> memoryview | bytearray:
    if isinstance(frame, memoryview) and not frame.readonly and frame.contiguous:
        return frame
    return bytearray(frame)
