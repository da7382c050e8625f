"""What the conformance suite must know of the transports: their options, and how an effect of one is seen.

Knows: where an offer says that a version lies, which call waits for a disk, and which one fills a receiver's memory.
Does not know: any check.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant
from areal_core.contract.weights import WeightTransport
from areal_core.weights.tensors import manifest_of
from areal_local.transports import collective_source
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.disk import DiskTransport
from areal_torch.collective.group import BroadcastGroup


def _waits_for_the_disk(transport: WeightTransport) -> bool:
    """Send a version as a worker does, which is told no options; return whether descriptors were synced on the way."""
    synced: list[Any] = []  # Any: descriptors, or what has one
    own = os.fsync

    def noting(descriptor: Any) -> None:
        synced.append(descriptor)
        own(descriptor)

    named = [("w", torch.ones(3))]
    offer = transport.open(1)
    os.fsync = noting  # type: ignore[assignment]  # a module's function, for the block
    try:
        sink = DiskTransport().sink(offer)
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


def _little_travels_again(transport: CollectiveTransport) -> bool:
    """Send a version twice; return whether a receiver is given less than half of its bytes the second time."""
    tensor = torch.ones(3000)
    _, again = _received(transport, tensor, versions=2)
    return sum(size for _, size in again) < tensor.nbytes / 2


def _routes(transport: CollectiveTransport) -> list[str]:
    """Return the ways by which a receiver is given a version."""
    (once,) = _received(transport, torch.ones(3000), versions=1)
    return sorted({route for route, _ in once})


def _received(transport: CollectiveTransport, tensor: Tensor, versions: int) -> list[list[tuple[str, int]]]:
    """Send a tensor so many times; return of each time by which way a receiver was given how many bytes at once."""
    receiver, found = CollectiveTransport(), list[list[tuple[str, int]]]()
    own = collective_source.fill
    named = [("w", tensor)]

    def noting(group: BroadcastGroup, views: Sequence[Tensor]) -> None:
        found[-1].append((group.slot.route, sum(view.numel() for view in views)))
        own(group, views)

    collective_source.fill = noting
    try:
        for version in range(1, versions + 1):
            found.append([])
            offer = transport.open(version)
            (mine,) = transport.expect(offer, ["receiver"])
            reading = threading.Thread(target=lambda mine=mine: list(receiver.source(mine).buckets()), daemon=True)
            reading.start()
            sink = transport.sink(offer)
            sink.begin(manifest_of(named, version=version))
            sink.write(dict(named))
            sink.finish()
            reading.join(_PATIENCE_S)
            transport.release(offer)
    finally:
        collective_source.fill = own
        receiver.close()
    return found


_PATIENCE_S = 30.0
_OF_STREAMS = (
    *("transport.stream.everybody", "transport.stream.sender_stops", "transport.stream.receiver_leaves"),
    *("transport.stream.newcomer", "transport.version.in_place", "transport.sink.copies"),
)
_SMALL = "checks of bytes set it themselves, and look that it is obeyed"
_OTHERS_FOLDER = "where files lie: checks give every process a temporary folder of its own, which empty stands for"

_OF_PIECES = Bounds(takes=(1,), refuses=(0, -1))
_ON_THREADS = Threshold(counts="bytes", at=4096, place="areal_torch.proved_copy:_WORTH_A_THREAD")

DISK = Adapter(
    thresholds=(
        Threshold(counts="bytes", at=4096, place="areal_local.transports.disk:_MIN_PART_BYTES"),
        _ON_THREADS,
    ),
    no_threshold={
        "areal_local.transports.disk:_MAX_PARTS": "how many threads write at most: _MIN_PART_BYTES is crossed"
    },
    variants={"fsync": Variant(options={"fsync": True}, shows=_waits_for_the_disk)},
    bounds={"bucket_bytes": _OF_PIECES},
    without_effect={"root": _OTHERS_FOLDER, "bucket_bytes": _SMALL},
    folders={"root": {}},
)
SHM = Adapter(
    thresholds=(
        Threshold(counts="bytes", at=1 << 20, place="areal_torch.proved_copy:TILE_BYTES"),
        _ON_THREADS,
    ),
    variants={"file": Variant(options={"backing": "file"}, shows=_has_a_path)},
    bounds={"bucket_bytes": _OF_PIECES, "backing": Bounds(takes=("memory",), refuses=("disk", ""))},
    without_effect={"folder": _OTHERS_FOLDER, "bucket_bytes": _SMALL},
    folders={"folder": {"backing": "file"}},
)
COLLECTIVE = Adapter(
    thresholds=(
        Threshold(counts="bytes", at=512 * 1024, place="areal_torch.collective.chain:DIRECT_PIECE_BYTES"),
        _ON_THREADS,
    ),
    no_threshold={
        "areal_local.transports.collective_source:_ALIGNED": "where the next tensor of a bucket begins",
        "areal_local.transports.delta:_BLOCK": "elements compared at once: tests change both sides of it",
        "areal_local.transports.delta:_HEAD": "the bytes before a difference: what is no shorter is sent whole",
        "areal_local.descriptors:_WANTED": "how many open files the system is asked for",
    },
    variants={
        "broadcast": Variant(options={"fan_out": "broadcast"}, shows=_routes, gives=["broadcast"]),
        "delta": Variant(options={"delta": True}, shows=_little_travels_again, checks=_OF_STREAMS),
    },
    bounds={
        "bucket_bytes": _OF_PIECES,
        "backend": Bounds(takes=("gloo",), refuses=("mpi",)),
        "fan_out": Bounds(takes=("broadcast",), refuses=("chain",)),
        "timeout_s": Bounds(takes=(0.1,), refuses=(0.0, -1.0)),
        "host": Bounds(refuses=("",)),
    },
    without_effect={
        "bucket_bytes": _SMALL,
        "host": "the address participants meet at; this machine has one that all of them reach",
        "backend": "gloo is the only one without accelerators",
        "timeout_s": "set by the suite, whose checks of peers that never come would take a minute each",
    },
)
