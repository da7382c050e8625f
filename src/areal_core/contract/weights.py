"""How weights travel from the trainer to the inference fleet: two phases, attested.

Phase one moves bytes and proves them; phase two flips the version. Nothing serves new
weights before every replica holds all of them (law 7).

    controller                    trainer rank 0                inference replica (each)
    transport.open(version) -> offer
                                  sink = transport.sink(offer)
                                  engine.send_weights(sink, v)
                                                                source = transport.source(offer)
                                                                engine.receive_weights(source, v)
    receipts equal? -> every replica: engine.commit_weights(v); else engine.abort_weights()
    transport.release(offer)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import Factory, field, frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class TensorSpec:
    """Name, shape and dtype of one tensor, under its Hugging Face name.

    Example: TensorSpec(name="model.norm.weight", shape=(64,), dtype="float32")
    """

    name: str
    shape: tuple[int, ...] = field(converter=tuple[int, ...])
    dtype: str


@frozen(kw_only=True)
class WeightManifest:
    """All tensors of one version, in sending order.

    `tied` maps a name that is not sent to the name that carries its bytes, for example
    {"lm_head.weight": "model.embed_tokens.weight"}. A receiver needs every trainable
    tensor of its model to appear in `tensors` or `tied`, and nothing else to appear.
    """

    version: int
    tensors: tuple[TensorSpec, ...] = field(converter=tuple[TensorSpec, ...])
    tied: Mapping[str, str] = Factory(dict)


@frozen(kw_only=True)
class Receipt:
    """Proof of one side of a transfer.

    `fingerprints` maps every tensor name to the hash of the bytes that side holds
    (`areal_core.weights.tensors`); both sides must agree on every one.
    """

    version: int
    num_bytes: int
    seconds: float
    fingerprints: Mapping[str, str]


@frozen(kw_only=True)
class Offer:
    """Where one version can be fetched; small, travels by RPC to every participant.

    `location` is the transport's own business: a folder, a segment name, an address.
    """

    transport: str
    version: int
    location: Mapping[str, str | int]


@runtime_checkable
class WeightSink(Protocol):
    """The sending end. Made by the transport in the trainer's rank 0, used by the engine."""

    @property
    def bucket_bytes(self) -> int:
        """Return the size at which the engine should cut buckets, in bytes."""

    def begin(self, manifest: WeightManifest) -> None:
        """Announce every tensor of the version. Called once, before the first bucket."""

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Take whole tensors on any device; the sink copies them before it returns.

        Raises:
            CoverageError: a name, shape or dtype the manifest did not announce.
        """

    def finish(self) -> Receipt:
        """Make the version readable and return what was written.

        Raises:
            CoverageError: an announced tensor was never written.
        """

    def abort(self) -> None:
        """Drop whatever was written. Idempotent; the offer stays unreadable."""


@runtime_checkable
class WeightSource(Protocol):
    """The receiving end. Made by the transport in each inference worker, used by the engine."""

    @property
    def manifest(self) -> WeightManifest:
        """Return what the sender announced. May block until it did, within the offer's deadline."""

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield every tensor exactly once, whole, on the CPU.

        The tensors may be views of shared memory: valid until the next bucket is asked
        for, never to be written to.
        """

    def close(self) -> None:
        """Let go of files and mappings. Idempotent."""


@runtime_checkable
class WeightTransport(Protocol):
    """One way to carry weights. Named by the entry point group `areal.transport`."""

    def open(self, version: int) -> Offer:
        """Reserve a place for one version. Controller, once per update.

        Raises:
            StorageError: no room for it.
        """

    def sink(self, offer: Offer) -> WeightSink:
        """Make the sending end. Trainer rank 0, once per update."""

    def source(self, offer: Offer) -> WeightSource:
        """Make a receiving end. Each inference worker, once per update.

        Raises:
            WeightSyncError: the offer is gone, or was never finished.
        """

    def release(self, offer: Offer) -> None:
        """Free the place of one version. Controller, after commit or abort; idempotent."""

    def close(self) -> None:
        """Release every offer still open. Idempotent; leaves no file or segment behind."""
