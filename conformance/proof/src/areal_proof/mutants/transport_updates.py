"""Broken transports: what memory held before, or holds by now; a newcomer that is taken for who was there.

Knows: how the transports of areal-local send, and which group they keep.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from areal_local.transports import delta
from areal_local.transports.collective import Broadcaster, CollectiveTransport
from areal_local.transports.collective_source import GroupCache
from areal_local.transports.disk import DiskTransport
from areal_local.transports.layout import SegmentLayout
from areal_local.transports.shm import Mapped, ShmTransport
from areal_local.transports.sink import CheckedSink
from areal_proof.mutants.rows import breaking, put, row, then, within
from areal_proof.mutants.weight_parts import breaking_ends
from areal_torch.collective.rendezvous import Rendezvous

breaks = breaking("transport/collective", CollectiveTransport)
breaks_shm = breaking("transport/shm", ShmTransport)
_, breaks_sink, _ = breaking_ends("transport/collective", CollectiveTransport)
_, breaks_disk_sink, _ = breaking_ends("transport/disk", DiskTransport)
_encode = delta.encode
_known: dict[tuple[str, int], Tensor] = {}


class _TakesAnybody(Broadcaster):
    def _form_group(self, told: Sequence[Mapping[str, Any]]) -> Any:  # Any: as the class it breaks has it
        held = max(str(one["held"]) for one in told)
        return super()._form_group([{**one, "held": held} for one in told])


class _LeavesLater(Broadcaster):
    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        with put(self.group, settle=lambda: None):
            return super().write(bucket)


class _CopiedAlong(Broadcaster):
    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        if all(tensor.is_contiguous() for tensor in bucket.values()):
            return super().write(bucket)
        with put(self.group, settle=lambda: None):
            return super().write(bucket)


class _CertainOfArrival(Broadcaster):
    def seal(self) -> None:
        with put(self._rendezvous, roll_call=lambda names, said: []):
            super().seal()


class _OneMemory(GroupCache):
    def take_memories(self, count: int, num_bytes: int, *, pinned: bool) -> Sequence[Tensor]:
        return super().take_memories(min(count, 1), num_bytes, pinned=pinned)


class _BySize(Mapped):
    def views(self, layout: SegmentLayout) -> Mapping[str, Tensor]:
        if self.layout is None or self.layout.num_bytes != layout.num_bytes:
            return super().views(layout)
        self.layout = layout
        return self._views


def _place_by_size(self: ShmTransport) -> None:
    self._writing, self.reading = _BySize(writable=True), _BySize(writable=False)


def _made_by(broadcaster: type[Broadcaster]) -> Any:
    return lambda self, offer: CheckedSink(
        broadcaster(Rendezvous(offer, self.connections), offer, self.cache, self.kept),
        version=offer.version,
        bucket_bytes=int(offer.location["bucket_bytes"]),
    )


def _of_the_first_million(before: Tensor, after: Tensor, itemsize: int) -> Tensor:
    kept = after.clone()
    kept[itemsize << 20 :] = before[itemsize << 20 :]
    return _encode(before, kept, itemsize)


def _first_seen(name: str, tensor: Tensor) -> Tensor:
    """Return what a tensor of a name held when its memory was first seen."""
    return _known.setdefault((name, tensor.data_ptr()), tensor.detach().clone())


ROWS = breaks.rows(
    row("TakesAnybody", "A receiver that never joined is taken to have the group of the others.",
        "transport.stream.newcomer", row="update-chain", sink=_made_by(_TakesAnybody)),
    row("LeavesLater", "A tensor is read after `write` returned.", "transport.sink.copies",
        sink=_made_by(_LeavesLater)),
    row("CopiedAlong", "Takes all tensors of a bucket for copied where one of them was.", "transport.sink.copies",
        sink=_made_by(_CopiedAlong)),
    row("CertainOfArrival", "Finishes without a word of those who receive.", "transport.stream.receiver_leaves",
        sink=_made_by(_CertainOfArrival)),
    row("OneMemory", "Receives a bucket in the memory of the one before, which is still read.",
        "transport.stream.holds", __init__=then(lambda self: setattr(self, "cache", _OneMemory()))),
)  # fmt: skip
SHM_ROWS = breaks_shm.rows(
    row("PlacesBySize", "Takes a version of as many bytes for one of the same tensors.", "transport.version.alike",
        __init__=then(_place_by_size)),
)  # fmt: skip
SINK_ROWS = breaks_sink.rows(
    row("FirstMillionOnly", "Of a tensor that changed, elements behind the first million are not told.",
        "transport.options.checks", write=within(lambda: put(delta, encode=_of_the_first_million))),
)  # fmt: skip
DISK_ROWS = breaks_disk_sink.rows(
    row("KnowsTheMemory", "Sends what a tensor held when its memory was first seen.", "transport.version.in_place",
        write=lambda original, bucket: original({name: _first_seen(name, tensor) for name, tensor in bucket.items()})),
)  # fmt: skip
