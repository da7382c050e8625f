"""Files of over four gibibytes that take up a few pages: their first tensor is a hole, real ones lie behind it.

Knows: safetensors files, and whether a file system keeps holes.
Does not know: who reads them.

A reader whose offsets have 32 bits finds zeros, or another tensor; one that reads the whole takes the gigabytes.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from areal_core.contract.weights import TensorSpec
from areal_core.weights.tensors import num_bytes

BEYOND = (1 << 32) + (1 << 20)
"""Bytes of a hole that no offset of 32 bits leads over, signed or not."""
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "uint8": "U8"}
_PROBE, _BLOCK = 1 << 26, 512


def hole(name: str, *shape: int) -> TensorSpec:
    """Return a float32 tensor of `BEYOND` bytes: of a last dimension that fits, behind those given."""
    return TensorSpec(name=name, shape=(*shape, BEYOND // 4 // math.prod(shape)), dtype="float32")


def keeps_holes(folder: Path) -> bool:
    """Tell whether what is never written takes no room in a file here."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(_PROBE)
        file.seek(_PROBE - 1)
        file.write(b"1")
        file.flush()
        return os.fstat(file.fileno()).st_blocks * _BLOCK < _PROBE // 4


def write_behind(
    file: Path, first: TensorSpec, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file of a hole and, behind it, tensors; of the first nothing is written."""
    ends = num_bytes(first)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    header[first.name] = {"dtype": _DTYPES[first.dtype], "shape": first.shape, "data_offsets": [0, ends]}
    for name, tensor in tensors.items():
        begin, ends = ends, ends + tensor.nbytes
        kind = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, ends]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.seek(num_bytes(first), 1)
        for tensor in tensors.values():
            stream.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def move_behind(file: Path, size: int = BEYOND) -> None:
    """Put a hole of so many bytes before what a file holds."""
    content = file.read_bytes()
    with file.open("wb") as stream:
        stream.seek(size)
        stream.write(content)
