"""What the bytes of a weight segment mean.

    header (48 bytes) | manifest, json | tensor | tensor | ...      every tensor starts at a multiple of 64

Knows: offsets, the header, how tensors become views.
Does not know: where the segment comes from.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import TensorSpec, WeightManifest
from areal_core.weights.tensors import num_bytes, torch_dtype

_HEADER = struct.Struct("<8sqqqQQ")  # magic, readable, version, ticket, bytes of json, bytes in all
_READABLE = struct.Struct("<q")
_MAGIC = b"arealshm"
_ALIGNMENT = 64


@frozen(kw_only=True)
class SegmentLayout:
    """A manifest and the offset of each of its tensors."""

    manifest: WeightManifest
    offsets: Mapping[str, int]
    num_bytes: int
    json: bytes = field(repr=False)

    @classmethod
    def of(cls, manifest: WeightManifest, known: SegmentLayout | None = None) -> SegmentLayout:
        """Place every tensor of a manifest; as in the layout `known`, where that is of the same tensors."""
        text = json.dumps(
            {"tensors": [[s.name, list(s.shape), s.dtype] for s in manifest.tensors], "tied": dict(manifest.tied)}
        ).encode()
        if known is not None and known.json == text:
            return evolve(known, manifest=manifest)
        offsets = {}
        end = _HEADER.size + len(text)
        for spec in manifest.tensors:
            offsets[spec.name] = math.ceil(end / _ALIGNMENT) * _ALIGNMENT
            end = offsets[spec.name] + num_bytes(spec)
        return cls(manifest=manifest, offsets=offsets, num_bytes=end, json=text)

    def write_header(self, mapped: mmap.mmap, *, ticket: int, readable: bool) -> None:
        """Write header and manifest; the flag that makes the version readable is the last thing to change."""
        mapped[_HEADER.size : _HEADER.size + len(self.json)] = self.json
        fields = (int(readable), self.manifest.version, ticket, len(self.json), self.num_bytes)
        _HEADER.pack_into(mapped, 0, _MAGIC, *fields)

    def view(self, mapped: mmap.mmap, spec: TensorSpec) -> Tensor:
        """Return one tensor of the segment, without copying."""
        count = math.prod(spec.shape)
        if not count:
            return torch.empty(spec.shape, dtype=torch_dtype(spec))
        flat = torch.frombuffer(mapped, dtype=torch_dtype(spec), count=count, offset=self.offsets[spec.name])
        return flat.view(spec.shape)


def mark(descriptor: int, version: int, ticket: int) -> None:
    """Reserve a segment for one offer, or with ticket 0 for none: nothing is readable, and no other may write."""
    os.pwrite(descriptor, _HEADER.pack(_MAGIC, 0, version, ticket, 0, 0), 0)


def check_ticket(mapped: mmap.mmap, version: int, ticket: int) -> None:
    """Refuse to write a segment that is not reserved for this offer any more.

    Raises:
        WeightSyncError: the offer was released; the memory may hold another version by now.
    """
    if _HEADER.unpack_from(mapped)[3] != ticket:
        raise WeightSyncError(f"version {version} cannot be written to its segment", why="its offer was released")


def read_layout(mapped: mmap.mmap, version: int, ticket: int, known: SegmentLayout | None = None) -> SegmentLayout:
    """Read a segment's header. What it says of tensors need not be read again if the layout `known` says the same.

    Raises:
        WeightSyncError: nothing readable is there, another version, another offer's, or no sense.
    """
    what = f"version {version} cannot be read from its segment"
    if not is_readable(mapped, version, ticket):
        found = _HEADER.unpack_from(mapped) if len(mapped) >= _HEADER.size else (b"", 0, -1, 0, 0, 0)
        state = f"it holds version {found[2]} of another offer" if found[1] else "never finished, aborted or released"
        raise WeightSyncError(what, why=state)
    _, _, _, _, num_json, total = _HEADER.unpack_from(mapped)
    text = mapped[_HEADER.size : _HEADER.size + num_json]
    try:
        if known is not None and (text, total) == (known.json, known.num_bytes):
            return evolve(known, manifest=evolve(known.manifest, version=version))
        stored = json.loads(text)
        specs = tuple(TensorSpec(name=n, shape=tuple(s), dtype=d) for n, s, d in stored["tensors"])
        layout = SegmentLayout.of(WeightManifest(version=version, tensors=specs, tied=dict(stored["tied"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightSyncError(what, why=f"its manifest is corrupt: {error}") from error
    if layout.num_bytes != total:
        raise WeightSyncError(what, why=f"its manifest is corrupt: {layout.num_bytes} bytes, not {total}")
    return layout


def is_readable(mapped: mmap.mmap, version: int, ticket: int) -> bool:
    """Tell whether the segment holds this version, finished, of the offer with this ticket."""
    if len(mapped) < _HEADER.size:
        return False
    magic, readable, found, owner, _, total = _HEADER.unpack_from(mapped)
    return magic == _MAGIC and bool(readable) and (found, owner) == (version, ticket) and total <= len(mapped)


READABLE_OFFSET = len(_MAGIC)
READABLE, UNREADABLE = _READABLE.pack(1), _READABLE.pack(0)
