"""Ends of a weight transfer that do what real ones may: reuse their buffers, stall, fail halfway.

Knows: the contract of a WeightSource, and how a transfer that stalls is begun.
Does not know: what an engine must do then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_core.contract.inference import InferenceEngine
from areal_core.contract.weights import Receipt, WeightManifest
from areal_torch.testing.serving import FolderWeights

STALL_S = 10.0
"""The most a stalled source waits for its check, so that nothing hangs with it: longer than a check waits."""


class _Source:
    """One version of weights, offered."""

    def __init__(self, weights: FolderWeights, version: int) -> None:
        self._offer = weights.offer(version)

    @property
    def manifest(self) -> WeightManifest:
        """Return what is offered."""
        return self._offer.manifest

    def close(self) -> None:
        """Hold nothing."""


class ScratchSource(_Source):
    """Hands out views of one scratch buffer, several tensors a bucket, and spoils it before the next bucket."""

    def __init__(self, weights: FolderWeights, version: int, *, per_bucket: int = 3) -> None:
        super().__init__(weights, version)
        self._per_bucket = per_bucket

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield views that are valid until the next bucket is asked for."""
        named = self._offer.tensors
        groups = [named[at : at + self._per_bucket] for at in range(0, len(named), self._per_bucket)]
        size = max(sum(tensor.nbytes + 64 for _, tensor in group) for group in groups)
        scratch = torch.zeros(size, dtype=torch.uint8)
        for group in groups:
            bucket: dict[str, Any] = {}
            at = 0
            for name, tensor in group:
                view = scratch[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                view.copy_(tensor)
                bucket[name] = view
                at += -(-tensor.nbytes // 64) * 64
            yield bucket
            scratch.fill_(0xFF)


class GatedSource(_Source):
    """Stops before bucket number `at` until `open` is called; `inside` tells that it was reached."""

    def __init__(self, weights: FolderWeights, version: int, *, at: int = 0) -> None:
        super().__init__(weights, version)
        self._offer.before_bucket = self._before
        self._at = at if at >= 0 else len(self._offer.tensors) + at
        self._opened = threading.Event()
        self.inside = threading.Event()
        self.timed_out = False

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield one tensor at a time, stopping once."""
        yield from self._offer.buckets()

    def open(self) -> None:
        """Let the transfer go on."""
        self._opened.set()

    def _before(self, number: int) -> None:
        if number == self._at:
            self.inside.set()
            self.timed_out = not self._opened.wait(STALL_S)


@contextlib.asynccontextmanager
async def stalled(
    bench: InferBench, engine: InferenceEngine, weights: FolderWeights, *, at: int
) -> AsyncIterator[tuple[GatedSource, asyncio.Task[Receipt]]]:
    """Begin to receive `weights` as the next version, and hold the transfer before tensor `at` for the block."""
    version = await bench.serving(engine) + 1
    source = GatedSource(weights, version, at=at)
    receiving = bench.call(engine.receive_weights(source, version))
    try:
        await bench.until(source.inside.is_set, f"a transfer to come to its tensor {at}")
        yield source, receiving
    finally:
        source.open()


class FailingSource(_Source):
    """Raises before bucket number `at`."""

    def __init__(self, weights: FolderWeights, version: int, *, at: int, error: Exception) -> None:
        super().__init__(weights, version)
        self._at = at if at >= 0 else len(self._offer.tensors) + at
        self._error = error

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield one tensor at a time, then fail."""
        for number, bucket in enumerate(self._offer.buckets()):
            if number == self._at:
                raise self._error
            yield bucket
