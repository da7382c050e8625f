"""What travels on a connection of the second transport: one json line, then raw bytes; and tensors as bytes.

Knows: the form of a message.
Does not know: what requests mean.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import TensorSpec

TIMEOUT_S = 30.0
HELLO = 16
"""Random bytes a client proves to know the key with."""
_LINE = 64 * 1024 * 1024


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def tensor_of(spec: TensorSpec, data: bytearray) -> Tensor:
    """Return the tensor these bytes are.

    Raises:
        WeightSyncError: they are too few or too many.
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    count = int(torch.Size(spec.shape).numel())
    if count * dtype.itemsize != len(data):
        raise WeightSyncError(
            f"tensor {spec.name!r} came with {len(data)} bytes", why=f"{count} {spec.dtype} announced"
        )
    return torch.frombuffer(data, dtype=dtype).reshape(spec.shape) if count else torch.empty(spec.shape, dtype=dtype)


def read_message(file: Any) -> tuple[dict[str, Any], bytearray]:
    """Read one json line and the bytes it announces. Any: a binary file.

    Raises:
        ValueError: it ends in the middle, or is no message.
    """
    line = file.readline(_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("the other end is gone")
    head: dict[str, Any] = json.loads(line)
    data = bytearray(int(head.pop("bytes")))
    view, have = memoryview(data), 0
    while have < len(data):
        step = file.readinto(view[have:])
        if not step:
            raise ValueError("the other end is gone")
        have += step
    return head, data
