"""The two ends of a transfer, played as engines play them.

Knows: the order of calls at each end.
Does not know: what is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from attrs import frozen
from torch import Tensor

from areal_conformance.outcome import Violation
from areal_core.contract.weights import Offer, Receipt, WeightManifest, WeightTransport
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_torch.bucketing import buckets

Cut = Callable[[Mapping[str, Tensor], int], Iterable[Mapping[str, Tensor]]]


@frozen(kw_only=True)
class Received:
    """What one receiver got: the manifest, and copies of the tensors in the order they came."""

    manifest: WeightManifest
    tensors: Mapping[str, Tensor]
    num_buckets: int = 0

    def receipt(self) -> Receipt:
        """Return the receipt an engine that holds these tensors gives."""
        return receipt_of(self.tensors, self.manifest.version)


def send(
    transport: WeightTransport,
    offer: Offer,
    tensors: Mapping[str, Tensor],
    *,
    tied: Mapping[str, str] | None = None,
    cut: Cut | None = None,
) -> Receipt:
    """Announce, write bucket by bucket, finish."""
    sink = transport.sink(offer)
    sink.begin(manifest_of(tensors.items(), version=offer.version, tied=tied))
    size = sink.bucket_bytes
    for bucket in cut(tensors, size) if cut else buckets(tensors.items(), size):
        sink.write(bucket)
    return sink.finish()


def receive(transport: WeightTransport, offer: Offer, *, moment_s: float = 0.0) -> Received:
    """Copy every bucket before the next is asked for, the first a moment late; close the source whatever happens."""
    source = transport.source(offer)
    try:
        manifest = source.manifest
        copies: dict[str, Tensor] = {}
        count = 0
        for bucket in source.buckets():
            count += 1
            if count == 1:
                time.sleep(moment_s)
            for name, tensor in bucket.items():
                if name in copies:
                    raise Violation(f"tensor {name!r} was yielded twice")
                if tensor.device.type != "cpu":
                    raise Violation(f"tensor {name!r} was yielded on {tensor.device}, expected the CPU")
                copies[name] = tensor.detach().clone()
        return Received(manifest=manifest, tensors=copies, num_buckets=count)
    finally:
        source.close()


def receipt_of(tensors: Mapping[str, Tensor], version: int) -> Receipt:
    """Return the receipt of whoever holds these tensors."""
    return Receipt(
        version=version,
        num_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        seconds=0.0,
        fingerprints={name: fingerprint(tensor) for name, tensor in tensors.items()},
    )
