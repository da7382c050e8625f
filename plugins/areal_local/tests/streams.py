"""Tensors that stream, and both ends of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from areal_core.contract.weights import Offer, Receipt
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_local.transports.collective import CollectiveTransport
from areal_torch.bucketing import buckets

TENSORS = {
    "embed.weight": torch.arange(600.0).reshape(30, 20),
    "scale": torch.tensor(3.5, dtype=torch.bfloat16),
    "none": torch.empty((0, 4)),
    "mask": torch.tensor([True, False, True]),
    "turned": torch.arange(12).reshape(3, 4).t(),
}
FINGERPRINTS = {name: fingerprint(tensor) for name, tensor in TENSORS.items()}

Ends = Callable[[], CollectiveTransport]


def send(transport: CollectiveTransport, offer: Offer) -> Receipt:
    sink = transport.sink(offer)
    sink.begin(manifest_of(TENSORS.items(), version=offer.version, tied={"head": "embed.weight"}))
    for bucket in buckets(TENSORS.items(), sink.bucket_bytes):
        sink.write(bucket)
    return sink.finish()


def receive(transport: CollectiveTransport, offer: Offer) -> dict[str, str]:
    source = transport.source(offer)
    prints = {name: fingerprint(tensor) for bucket in source.buckets() for name, tensor in bucket.items()}
    source.close()
    return prints
