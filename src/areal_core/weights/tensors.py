"""From tensors to their announced specifications, bytes and fingerprints: both sides of a transfer compute alike.

Knows: names, shapes, dtypes, byte counts, and how a tensor becomes bytes.
Does not know: where bytes are stored, versions, or who compares.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping

import torch
import xxhash
from torch import Tensor

from areal_core.contract.errors import CoverageError
from areal_core.contract.weights import TensorSpec, WeightManifest


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """Describe a tensor, for example `TensorSpec(name="norm.weight", shape=(64,), dtype="bfloat16")`."""
    return TensorSpec(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    """Return the dtype a specification names.

    Raises:
        CoverageError: torch has no such dtype.
    """
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CoverageError(f"tensor {spec.name!r} was announced with unknown dtype {spec.dtype!r}")
    return dtype


def num_bytes(spec: TensorSpec) -> int:
    """Return how many bytes the tensor's elements take."""
    return math.prod(spec.shape) * torch_dtype(spec).itemsize


def manifest_of(
    named: Iterable[tuple[str, Tensor]], *, version: int, tied: Mapping[str, str] | None = None
) -> WeightManifest:
    """Announce these tensors, in this order; train engines call it before `WeightSink.begin`."""
    return WeightManifest(version=version, tensors=tuple(spec_of(*item) for item in named), tied=dict(tied or {}))


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes in row-major order, uint8 [numel * itemsize] on the CPU.

    A view of the same memory when the tensor is contiguous and on the CPU, else a copy.
    """
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def octets(raw: Tensor) -> memoryview:
    """Return what `raw_bytes` returned as a buffer over the same memory, valid as long as the tensor lives.

    Not through numpy: a storage that numpy has seen can never be freed for a while (`areal_torch.offload`).
    """
    return memoryview((ctypes.c_ubyte * raw.numel()).from_address(raw.data_ptr())).cast("B")


def fingerprint(tensor: Tensor, parts: Iterable[memoryview] | None = None) -> str:
    """Hash dtype, shape and bytes of a tensor with xxh3-128; 32 hexadecimal digits. `parts` are its bytes, if at hand.

    Any dtype, device and stride: equal values of equal dtype and shape give equal digits. -0.0 and 0.0, and NaNs of
    different payload, differ, because their bytes do. It finds lost, stale, swapped and flipped bytes, no adversary's.
    """
    digest = xxhash.xxh3_128(f"{tensor.dtype}{list(tensor.shape)}".encode())
    raw = raw_bytes(tensor)
    for part in parts or (octets(raw),):
        digest.update(part)
    return digest.hexdigest()


def combined(fingerprints: Mapping[str, str]) -> str:
    """Return one fingerprint of tensors by name, whatever their order; 32 hexadecimal digits."""
    return xxhash.xxh3_128(repr(sorted(fingerprints.items())).encode()).hexdigest()
