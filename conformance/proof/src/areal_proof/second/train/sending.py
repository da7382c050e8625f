"""Weights leave the trainer, one bucket at a time, and the receipt is held against what left.

Knows: the sink's protocol.
Does not know: how tensors are made whole, or where they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from areal_core.contract.errors import CoverageError, FingerprintMismatch
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest, WeightSink
from areal_core.weights.tensors import fingerprint
from areal_proof.second.train.ranks import Ranks


def send(
    sink: WeightSink | None, ranks: Ranks, version: int, tensors: Mapping[str, Tensor], tied: Mapping[str, str]
) -> Receipt | None:
    """Send every tensor from the rank that has the sink; the others learn whether it went well. Collective.

    Raises:
        FingerprintMismatch, CoverageError, StorageError: on every rank; the sink is aborted.
    """
    receipts: list[Receipt] = []

    def work() -> None:
        if sink is None:
            return
        try:
            receipts.append(_send(sink, version, tensors, tied))
        except BaseException:
            sink.abort()
            raise

    ranks.agree(work)
    return receipts[0] if receipts else None


def _send(sink: WeightSink, version: int, tensors: Mapping[str, Tensor], tied: Mapping[str, str]) -> Receipt:
    specs = [
        TensorSpec(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    ]
    sink.begin(WeightManifest(version=version, tensors=specs, tied=tied))
    left: dict[str, str] = {}
    for bucket in _buckets(tensors, sink.bucket_bytes):
        left |= {name: fingerprint(tensor) for name, tensor in bucket.items()}
        sink.write(bucket)
    receipt = sink.finish()
    arrived = receipt.fingerprints
    if set(arrived) != set(left):
        raise CoverageError(
            f"{len(left)} tensors were sent and {len(arrived)} arrived",
            why=f"they differ in {', '.join(sorted(set(arrived) ^ set(left))[:4])}",
        )
    changed = [name for name, value in left.items() if arrived[name] != value]
    if changed:
        raise FingerprintMismatch(
            f"{len(changed)} tensors of version {version} arrived as other bytes than were sent",
            why=f"fingerprints differ: {', '.join(changed[:4])}",
            fix="look at the disk or memory the transport uses",
        )
    return receipt


def _buckets(tensors: Mapping[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    bucket: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if bucket and sum(held.nbytes for held in bucket.values()) + tensor.nbytes > size:
            yield bucket
            bucket = {}
        bucket[name] = tensor
    if bucket:
        yield bucket
