"""What the conformance suite must know of the transports: their options, and how an effect of one is seen.

Knows: where an offer says that a version lies, and which call waits for a disk.
Does not know: any check.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from areal_conformance.adapter import Adapter, Threshold, Variant
from areal_core.contract.weights import WeightTransport
from areal_core.weights.tensors import manifest_of


def _waits_for_the_disk(transport: WeightTransport) -> bool:
    """Send a version; return whether a descriptor was synced on the way."""
    synced: list[Any] = []  # Any: descriptors, or what has one
    own = os.fsync

    def noting(descriptor: Any) -> None:
        synced.append(descriptor)
        own(descriptor)

    named = [("w", torch.ones(3))]
    offer = transport.open(1)
    os.fsync = noting  # type: ignore[assignment]  # a module's function, for the block
    try:
        sink = transport.sink(offer)
        sink.begin(manifest_of(named, version=1))
        sink.write(dict(named))
        sink.finish()
    finally:
        os.fsync = own
        transport.release(offer)
    return len(synced) >= 3  # the tensors, the index, and the folder that names it


def _has_a_path(transport: WeightTransport) -> bool:
    """Return whether a version lies in a file that has a name."""
    offer = transport.open(1)
    path = Path(str(offer.location.get("path", "")))
    found = path.is_file() and not path.is_relative_to("/proc")
    transport.release(offer)
    return found


_SMALL = "checks of bytes set it themselves, and look that it is obeyed"
_OTHERS_FOLDER = "where files lie: checks give every process a temporary folder of its own, which empty stands for"

DISK = Adapter(
    variants={"fsync": Variant(options={"fsync": True}, shows=_waits_for_the_disk)},
    without_effect={"root": _OTHERS_FOLDER, "bucket_bytes": _SMALL},
)
SHM = Adapter(
    variants={"file": Variant(options={"backing": "file"}, shows=_has_a_path)},
    without_effect={"folder": _OTHERS_FOLDER, "bucket_bytes": _SMALL},
)
COLLECTIVE = Adapter(
    thresholds=(Threshold(counts="bytes", at=512 * 1024),),
    variants={"broadcast": Variant(options={"fan_out": "broadcast"})},
    without_effect={
        "bucket_bytes": _SMALL,
        "host": "the address participants meet at; this machine has one that all of them reach",
        "backend": "gloo is the only one without accelerators",
        "timeout_s": "set by the suite, whose checks of peers that never come would take a minute each",
    },
)
