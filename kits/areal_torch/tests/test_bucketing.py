"""Buckets hold whole tensors, in order, within the bound."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_core.weights.tensors import num_bytes, spec_of
from areal_torch.bucketing import bucket_specs, buckets

SIZES = st.lists(st.integers(0, 40), max_size=20)


@given(sizes=SIZES, bound=st.integers(1, 60))
def test_buckets_keep_order_and_bound(sizes: list[int], bound: int) -> None:
    """Every tensor once, in order; only a single tensor exceeds the bound; no bucket is cut too early."""
    named = [(str(number), torch.zeros(size, dtype=torch.uint8)) for number, size in enumerate(sizes)]

    cut = list(buckets(named, bound))

    totals = [sum(tensor.nbytes for tensor in bucket.values()) for bucket in cut]
    assert [name for bucket in cut for name in bucket] == [name for name, _ in named]
    assert all(total <= bound or len(bucket) == 1 for total, bucket in zip(totals, cut, strict=True))
    firsts = [next(iter(bucket.values())).nbytes for bucket in cut]
    assert all(total + first > bound for total, first in zip(totals, firsts[1:], strict=False))


@given(sizes=SIZES, bound=st.integers(1, 200))
def test_specs_are_cut_like_tensors(sizes: list[int], bound: int) -> None:
    """Sender and receiver agree on the buckets without talking."""
    named = [(str(number), torch.zeros(size)) for number, size in enumerate(sizes)]
    specs = [spec_of(*item) for item in named]

    assert [list(bucket) for bucket in buckets(named, bound)] == [
        [spec.name for spec in bucket] for bucket in bucket_specs(specs, bound)
    ]
    assert [num_bytes(spec) for spec in specs] == [tensor.nbytes for _, tensor in named]


def test_buckets_are_cut_lazily() -> None:
    """At most one bucket and one tensor exist at a time when tensors are gathered on the way."""
    made: list[int] = []

    def gather() -> list[tuple[str, torch.Tensor]]:
        for number in range(6):
            made.append(number)
            yield str(number), torch.zeros(10, dtype=torch.uint8)

    stream = buckets(gather(), 20)
    next(stream)

    assert made == [0, 1, 2]
