"""From tensors to their announced specifications and back.

Knows: names, shapes, dtypes and byte counts.
Does not know: where bytes are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
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
