"""Weights through shared memory: one copy in, views out.

Knows: the life of segments across versions.
Does not know: engines, or how a segment is found (`segment`) and laid out (`layout`).

The segment of a released version is used again for the next one, by every participant:
its pages are already there and mapped, which is what most of the time would go into.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import secrets
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from areal_core.contract.errors import StorageError, WeightSyncError
from areal_core.contract.weights import Offer, WeightManifest
from areal_local.transports.config import ShmConfig
from areal_local.transports.layout import (
    READABLE,
    READABLE_OFFSET,
    UNREADABLE,
    SegmentLayout,
    check_ticket,
    is_readable,
    mark,
    read_layout,
)
from areal_local.transports.sink import CheckedSink
from areal_torch.bucketing import bucket_specs
from areal_torch.owned_folder import OwnedFolder, remove_if_orphaned, sweep
from areal_torch.proved_copy import copy_proved
from areal_torch.shared_memory import Segment, drop, grow, has_anonymous, map_segment, open_segment

_PREFIX = "areal-shm"


class ShmTransport:
    """The transport `shm`. The offer holds all a worker needs, so workers may use any config."""

    def __init__(self, config: ShmConfig | None = None) -> None:
        self._config = config or ShmConfig()
        self._folder: OwnedFolder | None = None
        self._swept = False
        self.segments: dict[int, Segment] = {}
        self.spare: Segment | None = None
        self._writing = Mapped(writable=True)
        self.reading = Mapped(writable=False)
        self._watched: set[str] = set()

    def open(self, version: int) -> Offer:
        """Take the spare segment or make one. It has room for a header until the sink begins."""
        # A segment may serve many versions, and one version twice: only the ticket tells two offers apart.
        ticket = secrets.randbits(62) + 1
        try:
            segment = self.spare or self._make()
            mark(segment.descriptor, version, ticket)
        except OSError as error:
            raise StorageError("no segment for weights could be made", why=str(error)) from error
        self.spare = None
        self.segments[ticket] = segment
        location = {**segment.location, "ticket": ticket, "bucket_bytes": self._config.bucket_bytes}
        return Offer(transport="shm", version=version, location=location)

    def sink(self, offer: Offer) -> CheckedSink:
        """Make the sending end."""
        self._attend(offer)
        store = _SegmentStore(self._writing, offer)
        return CheckedSink(store, version=offer.version, bucket_bytes=int(offer.location["bucket_bytes"]))

    def source(self, offer: Offer) -> ShmSource:
        """Make a receiving end of a finished version."""
        self._attend(offer)
        return ShmSource(self.reading, offer)

    def release(self, offer: Offer) -> None:
        """Make the version unreadable and keep its memory for the next one. Idempotent."""
        segment = self.segments.pop(int(offer.location["ticket"]), None)
        if segment is None:
            return
        finished = os.pread(segment.descriptor, len(READABLE), READABLE_OFFSET) == READABLE
        mark(segment.descriptor, offer.version, 0)
        if finished and self.spare is None:
            self.spare = segment
        else:
            # An unfinished segment may still have a writer somewhere: it is never used again.
            segment.close()

    def close(self) -> None:
        """Free every segment and mapping. Idempotent."""
        for segment in (*self.segments.values(), *([self.spare] if self.spare else [])):
            segment.close()
        self.segments.clear()
        self.spare = None
        self._writing.close()
        self.reading.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _make(self) -> Segment:
        root = Path(self._config.folder or ("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()))
        if not self._swept:
            # Also where this run makes no file: an earlier one may have, and nobody was left to remove them.
            sweep(root, _PREFIX)
            self._swept = True
        if self._config.backing == "memory" or (self._config.backing == "auto" and has_anonymous()):
            return Segment.anonymous("areal-weights")
        if self._folder is None:
            self._folder = OwnedFolder(root.resolve(), _PREFIX)
        descriptor, name = tempfile.mkstemp(dir=self._folder.path)
        os.close(descriptor)
        Path(name).unlink()
        return Segment.file(Path(name))

    def _attend(self, offer: Offer) -> None:
        path = Path(str(offer.location["path"]))
        owned = str(path.parent)
        if not owned.startswith("/proc/") and owned not in self._watched:
            # A worker outlives a killed controller for a moment: then it is the one to tidy up.
            self._watched.add(owned)
            weakref.finalize(self, remove_if_orphaned, path.parent)


class Mapped:
    """The one segment a worker has mapped for one direction; mapped again only if it is another or grew.

    `layout` is that of the last version in it: the next one almost always has the same tensors in the same places.
    """

    def __init__(self, *, writable: bool) -> None:
        self._writable = writable
        self._key: tuple[str | int, str | int] | None = None
        self.mapping: mmap.mmap | None = None
        self.layout: SegmentLayout | None = None
        self._views: Mapping[str, Tensor] = {}

    def map(self, offer: Offer, size: int) -> mmap.mmap:
        """Return a mapping of the offer's segment; `size` bytes of it if writable, else all of it."""
        key = (offer.location["device"], offer.location["inode"])
        descriptor = open_segment(offer.location, writable=self._writable)
        try:
            if self._writable:
                grow(descriptor, size, str(offer.location["path"]))
            length = os.fstat(descriptor).st_size
            # Only Linux promises that a private mapping sees what others write later.
            kept = self._writable or sys.platform == "linux"
            if self.mapping is None or self._key != key or len(self.mapping) != length or not kept:
                # Only let go of: who still reads or writes the other segment has a hold on its mapping.
                self._let_go()
                if not length:
                    raise WeightSyncError(f"version {offer.version} cannot be read", why="nothing was written yet")
                self.mapping, self._key = map_segment(descriptor, length, writable=self._writable), key
        finally:
            os.close(descriptor)
        return self.mapping

    def views(self, layout: SegmentLayout) -> Mapping[str, Tensor]:
        """Return every tensor of the segment that was mapped last."""
        assert self.mapping is not None
        if self.layout is None or self.layout.json != layout.json:
            self._views = {spec.name: layout.view(self.mapping, spec) for spec in layout.manifest.tensors}
        self.layout = layout
        return self._views

    def close(self) -> None:
        """Drop the mapping; if views of it are alive it goes with the last one."""
        mapping = self.mapping
        self._let_go()
        if mapping is not None:
            # Refused while somebody holds a view; the map is freed when the last view is.
            with contextlib.suppress(BufferError):
                mapping.close()

    def _let_go(self) -> None:
        self.mapping = self._key = self.layout = None
        self._views = {}


class _SegmentStore:
    def __init__(self, mapped: Mapped, offer: Offer) -> None:
        self._mapped = mapped
        self._offer = offer
        self._map: mmap.mmap | None = None
        self._views: Mapping[str, Tensor] = {}

    def begin(self, manifest: WeightManifest) -> None:
        layout = SegmentLayout.of(manifest, self._mapped.layout)
        ticket = int(self._offer.location["ticket"])
        mapped = self._mapped.map(self._offer, layout.num_bytes)
        check_ticket(mapped, self._offer.version, ticket)
        self._map, self._views = mapped, self._mapped.views(layout)
        layout.write_header(mapped, ticket=ticket, readable=False)

    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        held = copy_proved((self._views[name], tensor) for name, tensor in bucket.items())
        return dict(zip(bucket, held, strict=True))

    def seal(self) -> None:
        assert self._map is not None
        self._map[READABLE_OFFSET : READABLE_OFFSET + len(READABLE)] = READABLE
        self._map, self._views = None, {}

    def discard(self) -> None:
        if self._map is not None:
            self._map[READABLE_OFFSET : READABLE_OFFSET + len(UNREADABLE)] = UNREADABLE
            drop(self._map)
        self._map, self._views = None, {}


@functools.cache
def _hush() -> None:
    """Have torch say once, unheard, that memory is not writable: what sources yield is not meant to be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"0", dtype=torch.uint8)


class ShmSource:
    """A finished version in shared memory; tensors are views of it, valid until the offer is released."""

    def __init__(self, mapped: Mapped, offer: Offer) -> None:
        self._offer = offer
        self._map: mmap.mmap | None = mapped.map(offer, 0)
        _hush()
        self._layout = read_layout(self._map, offer.version, int(offer.location["ticket"]), mapped.layout)
        self._views = mapped.views(self._layout)

    @property
    def manifest(self) -> WeightManifest:
        """Return what the sender announced."""
        return self._layout.manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield every tensor once; in the end check that nobody wrote to the segment meanwhile.

        Raises:
            WeightSyncError: the offer was released while it was read; what was read is void.
        """
        if self._map is None:
            raise WeightSyncError("the weight source was closed")
        mapped = self._map
        for specs in bucket_specs(self.manifest.tensors, int(self._offer.location["bucket_bytes"])):
            yield {spec.name: self._views[spec.name] for spec in specs}
        if not is_readable(mapped, self._offer.version, int(self._offer.location["ticket"])):
            raise WeightSyncError(
                f"version {self._offer.version} was released while it was read",
                why="the update timed out or was aborted",
            )

    def close(self) -> None:
        """Let go of the segment; the transport keeps the mapping for the next version. Idempotent."""
        self._map, self._views = None, {}
