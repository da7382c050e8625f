"""Broken transports: what a trainer's memory held before, or holds by now; a newcomer that is taken for who was there.

Knows: how the transports of areal-local send, and which group they keep.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from areal_local.transports import delta
from areal_local.transports.collective import Broadcaster, CollectiveTransport
from areal_local.transports.disk import DiskTransport
from areal_local.transports.sink import CheckedSink
from areal_proof.mutants.rows import breaking, put, row, within
from areal_proof.mutants.weight_parts import breaking_ends
from areal_torch.collective.rendezvous import Rendezvous

breaks = breaking("transport/collective", CollectiveTransport)
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
)  # fmt: skip
SINK_ROWS = breaks_sink.rows(
    row("FirstMillionOnly", "Of a tensor that changed, elements behind the first million are not told.",
        "transport.options.checks", write=within(lambda: put(delta, encode=_of_the_first_million))),
)  # fmt: skip
DISK_ROWS = breaks_disk_sink.rows(
    row("KnowsTheMemory", "Sends what a tensor held when its memory was first seen.", "transport.version.in_place",
        write=lambda original, bucket: original({name: _first_seen(name, tensor) for name, tensor in bucket.items()})),
)  # fmt: skip
