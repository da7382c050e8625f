"""Weights sent and received over one transport: what tests of several files share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_torch.bucketing import buckets
from areal_torch.shared_memory import has_anonymous

KINDS = ["disk", "file", *(["memory"] if has_anonymous() else [])]

Make = Callable[..., WeightTransport]


def some_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (50, 8), "norm.weight": (8,), "scale": (), "none": (0, 3), "big": (700,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def send(transport: WeightTransport, offer: Offer, tensors: dict[str, Tensor]) -> Receipt:
    sink = transport.sink(offer)
    sink.begin(manifest_of(tensors.items(), version=offer.version, tied={"head.weight": next(iter(tensors))}))
    for bucket in buckets(tensors.items(), sink.bucket_bytes):
        sink.write(bucket)
    return sink.finish()


def receive(transport: WeightTransport, offer: Offer) -> dict[str, Tensor]:
    source = transport.source(offer)
    tensors: dict[str, Tensor] = {}
    for bucket in source.buckets():
        assert not tensors.keys() & bucket.keys()
        tensors.update({name: tensor.clone() for name, tensor in bucket.items()})
    source.close()
    return tensors


def receipt_for(tensors: dict[str, Tensor], version: int) -> Receipt:
    fingerprints = {name: fingerprint(tensor) for name, tensor in tensors.items()}
    return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints=fingerprints)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run calls in threads; return what each gave or raised, in order. Any: of the calls."""
    outcomes: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            outcomes[number] = works[number]()
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "an end hangs"
    return outcomes
