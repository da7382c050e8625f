"""A transport that carries nothing and writes down what becomes of its ends, for checks of schedulers.

Workers read this file through `Job.imports`, beside those of the other probes.

Knows: where to write, which every offer says, whether the transfer is to fail, and what a receiver waits for.
Does not know: tensors, or any scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightManifest
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import backend

NAME = "conformance_probe"


_LOOK_S, _MOST_S = 0.005, 60.0


def offer_of(notes: Path, version: int, *, fails: bool = False, waits: Path | None = None) -> Offer:
    """Return an offer whose ends write to this file; a receiver waits for another, in the call that makes its end."""
    location = {"notes": str(notes), "fails": int(fails), "waits": str(waits or "")}
    return Offer(transport=NAME, version=version, location=location)  # type: ignore[arg-type]  # texts and numbers


def _note(offer: Offer, what: str) -> None:
    with Path(str(offer.location["notes"])).open("a") as notes:
        notes.write(f"{what}\n")


def _wait(offer: Offer) -> None:
    """Wait for the file that a receiver waits for, if any."""
    path, until = str(offer.location["waits"]), time.monotonic() + _MOST_S
    if path:
        _note(offer, f"source of {offer.version} waits")
    while path and not Path(path).exists() and time.monotonic() < until:
        time.sleep(_LOOK_S)


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
        _note(self._offer, f"{self._kind} of {self._offer.version} {what}")


@backend(Manifest(role="transport", name=NAME, contract=(1, 0), factory="transfers:ProbeTransport"))
class ProbeTransport:
    """Makes ends. Satisfies `WeightTransport`."""

    def __init__(self) -> None:
        self._last: Offer | None = None

    def open(self, version: int) -> Offer:
        """Refuse: checks make their offers themselves."""
        raise WeightSyncError("the probe opens no version", fix="make its offers with offer_of")

    def sink(self, offer: Offer) -> ProbeEnd:
        """Make the sending end."""
        self._last = offer
        return ProbeEnd("sink", offer)

    def source(self, offer: Offer) -> ProbeEnd:
        """Make a receiving end."""
        self._last = offer
        _wait(offer)
        return ProbeEnd("source", offer)

    def release(self, offer: Offer) -> None:
        """Free nothing."""

    def close(self) -> None:
        """Note the call where the last offer says."""
        if self._last is not None:
            _note(self._last, "transport closed")
