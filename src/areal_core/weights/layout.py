"""What the bytes of a weight segment mean.

    header (40 bytes) | manifest, json | tensor | tensor | ...      every tensor starts at a multiple of 64

Knows: offsets, the header, how tensors become views.
Does not know: where the segment comes from.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping

import torch
from attrs import field, frozen
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import TensorSpec, WeightManifest
from areal_core.weights.specs import num_bytes, torch_dtype

_HEADER = struct.Struct("<8sqqQQ")  # magic, readable, version, bytes of json, bytes in all
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
    def of(cls, manifest: WeightManifest) -> SegmentLayout:
        """Place every tensor of a manifest."""
        text = json.dumps(
            {"tensors": [[s.name, list(s.shape), s.dtype] for s in manifest.tensors], "tied": dict(manifest.tied)}
        ).encode()
        offsets = {}
        end = _HEADER.size + len(text)
        for spec in manifest.tensors:
            offsets[spec.name] = math.ceil(end / _ALIGNMENT) * _ALIGNMENT
            end = offsets[spec.name] + num_bytes(spec)
        return cls(manifest=manifest, offsets=offsets, num_bytes=end, json=text)

    def write_header(self, mapped: mmap.mmap, *, readable: bool) -> None:
        """Write header and manifest; the flag that makes the version readable is the last thing to change."""
        mapped[_HEADER.size : _HEADER.size + len(self.json)] = self.json
        _HEADER.pack_into(mapped, 0, _MAGIC, int(readable), self.manifest.version, len(self.json), self.num_bytes)

    def view(self, mapped: mmap.mmap, spec: TensorSpec) -> Tensor:
        """Return one tensor of the segment, without copying."""
        count = math.prod(spec.shape)
        if not count:
            return torch.empty(spec.shape, dtype=torch_dtype(spec))
        flat = torch.frombuffer(mapped, dtype=torch_dtype(spec), count=count, offset=self.offsets[spec.name])
        return flat.view(spec.shape)


def read_layout(mapped: mmap.mmap, version: int) -> SegmentLayout:
    """Read a segment's header.

    Raises:
        WeightSyncError: nothing readable is there, or another version.
    """
    if not is_readable(mapped, version):
        found = _HEADER.unpack_from(mapped) if len(mapped) >= _HEADER.size else (b"", 0, -1, 0, 0)
        state = "never finished, aborted or released" if not found[1] else f"it holds version {found[2]}"
        raise WeightSyncError(f"version {version} cannot be read from its segment", why=state)
    _, _, _, num_json, _ = _HEADER.unpack_from(mapped)
    stored = json.loads(mapped[_HEADER.size : _HEADER.size + num_json])
    specs = tuple(TensorSpec(name=n, shape=tuple(s), dtype=d) for n, s, d in stored["tensors"])
    return SegmentLayout.of(WeightManifest(version=version, tensors=specs, tied=stored["tied"]))


def is_readable(mapped: mmap.mmap, version: int) -> bool:
    """Tell whether the segment holds this version, finished."""
    if len(mapped) < _HEADER.size:
        return False
    magic, readable, found, _, total = _HEADER.unpack_from(mapped)
    return magic == _MAGIC and bool(readable) and found == version and total <= len(mapped)


READABLE_OFFSET = len(_MAGIC)
READABLE, UNREADABLE = _READABLE.pack(1), _READABLE.pack(0)
