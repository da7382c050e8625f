"""The fingerprint of one tensor: both sides of a weight transfer compute it and must agree.

Knows: how a tensor becomes bytes.
Does not know: names, versions, or who compares.
"""

from __future__ import annotations

import ctypes

import torch
import xxhash
from torch import Tensor


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


def fingerprint(tensor: Tensor) -> str:
    """Hash dtype, shape and bytes of a tensor with xxh3-128; 32 hexadecimal digits.

    Any dtype, device and stride: equal values of equal dtype and shape give equal digits.
    -0.0 and 0.0, and NaNs of different payload, differ, because their bytes do.
    Not a defence against an adversary; it finds lost, stale, swapped and flipped bytes.
    """
    digest = xxhash.xxh3_128(f"{tensor.dtype}{list(tensor.shape)}".encode())
    raw = raw_bytes(tensor)
    digest.update(octets(raw))
    return digest.hexdigest()
