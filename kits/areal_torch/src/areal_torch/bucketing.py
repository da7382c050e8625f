"""Cut a stream of tensors into buckets of bounded size.

Knows: sizes.
Does not know: where the tensors come from (they may be gathered one by one) or go to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from areal_core.contract.weights import TensorSpec
from areal_core.weights.tensors import num_bytes


def buckets(named: Iterable[tuple[str, Tensor]], bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Yield whole tensors in order, as many per bucket as fit `bucket_bytes`.

    A tensor larger than the bound makes a bucket of its own. Lazy: an engine that gathers
    tensors in a generator never holds more than one bucket and one tensor.
    """
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in named:
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor
        size += tensor.nbytes
    if bucket:
        yield bucket


def bucket_specs(specs: Sequence[TensorSpec], bucket_bytes: int) -> list[list[TensorSpec]]:
    """Cut announced tensors the way `buckets` cuts the tensors themselves."""
    cut: list[list[TensorSpec]] = []
    size = 0
    for spec in specs:
        if not cut or size + num_bytes(spec) > bucket_bytes:
            cut.append([])
            size = 0
        cut[-1].append(spec)
        size += num_bytes(spec)
    return cut
