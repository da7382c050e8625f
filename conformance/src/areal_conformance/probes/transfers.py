"""A transport that carries nothing and writes down what becomes of its ends, for checks of schedulers.

Workers read this file through `Job.imports`, beside those of the other probes.

Knows: where to write, which every offer says, and whether the transfer is to fail.
Does not know: tensors, or any scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightManifest
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import backend

NAME = "conformance_probe"


def offer_of(notes: Path, version: int, *, fails: bool = False) -> Offer:
    """Return an offer whose ends write to this file."""
    return Offer(transport=NAME, version=version, location={"notes": str(notes), "fails": int(fails)})


class ProbeEnd:
    """Either end of a transfer: satisfies `WeightSink` and `WeightSource`."""

    bucket_bytes = 1024

    def __init__(self, kind: str, offer: Offer) -> None:
        self._kind, self._offer = kind, offer
        self._note("made")

    @property
    def manifest(self) -> WeightManifest:
        """Return that of no tensors, or fail."""
        self._go()
        return WeightManifest(version=self._offer.version, tensors=())

    def begin(self, manifest: WeightManifest) -> None:
        """Take note of nothing."""

    def write(self, bucket: Mapping[str, Any]) -> None:
        """Take nothing. Any: tensors."""

    def finish(self) -> Receipt:
        """Return the receipt of no tensors, or fail."""
        self._go()
        return Receipt(version=self._offer.version, num_bytes=0, seconds=0.0, fingerprints={})

    def buckets(self) -> Iterator[Mapping[str, Any]]:
        """Give nothing. Any: tensors."""
        return iter(())

    def abort(self) -> None:
        """Note the call."""
        self._note("aborted")

    def close(self) -> None:
        """Note the call."""
        self._note("closed")

    def _go(self) -> None:
        if self._offer.location["fails"]:
            raise ConnectionError("the probe was told to fail in its transfer")

    def _note(self, what: str) -> None:
        with Path(str(self._offer.location["notes"])).open("a") as notes:
            notes.write(f"{self._kind} of {self._offer.version} {what}\n")


@backend(Manifest(role="transport", name=NAME, contract=(1, 0), factory="transfers:ProbeTransport"))
class ProbeTransport:
    """Makes ends. Satisfies `WeightTransport`."""

    def open(self, version: int) -> Offer:
        """Refuse: checks make their offers themselves."""
        raise WeightSyncError("the probe opens no version", fix="make its offers with offer_of")

    def sink(self, offer: Offer) -> ProbeEnd:
        """Make the sending end."""
        return ProbeEnd("sink", offer)

    def source(self, offer: Offer) -> ProbeEnd:
        """Make a receiving end."""
        return ProbeEnd("source", offer)

    def release(self, offer: Offer) -> None:
        """Free nothing."""

    def close(self) -> None:
        """Release nothing."""
