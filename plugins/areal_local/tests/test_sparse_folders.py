"""Weights beyond four gibibytes in a file of the disk transport arrive as they lie there."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch

from areal_local.transports.config import DiskConfig
from areal_local.transports.disk import DiskTransport
from areal_torch.testing.sparse_files import hole, keeps_holes, write_behind

from .transfers import send

FEW_KB = 1 << 19
"""Half a gibibyte in the unit of `ru_maxrss`."""


def test_tensors_behind_one_of_four_gibibytes_arrive(tmp_path: Path) -> None:
    """Their bits, under their names; the large one is mapped and not read."""
    if not keeps_holes(tmp_path):
        pytest.skip(f"files in {tmp_path} keep no holes")
    tensors = {"norm.weight": torch.arange(12.0), "up.weight": torch.arange(40.0).view(5, 8).bfloat16() / 7}
    large = hole("embed.weight", 2)
    transport = DiskTransport(DiskConfig(root=str(tmp_path)))
    offer = transport.open(3)
    send(transport, offer, tensors)
    folder = Path(str(offer.location["folder"]))
    (file,) = folder.glob("*.safetensors")
    write_behind(file, large, tensors)
    index = json.loads((folder / "index.json").read_text())
    index["tensors"].insert(0, [large.name, list(large.shape), large.dtype])
    index["files"][file.name].insert(0, large.name)
    (folder / "index.json").write_text(json.dumps(index))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    source = DiskTransport().source(offer)
    (bucket,) = source.buckets()
    assert tuple(bucket[large.name].shape) == large.shape
    assert float(bucket[large.name][1, -1]) == 0.0
    assert all(torch.equal(bucket[name], tensor) for name, tensor in tensors.items())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < FEW_KB
    source.close()
    transport.close()
