"""What lies beyond four gibibytes in a file is read from there, and what lies before it is not read at all."""

from __future__ import annotations

import dataclasses
import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError
from areal_torch.conversion.convert import convert
from areal_torch.conversion.dcp import DCPFolder, read_index
from areal_torch.conversion.hf import HFFolder
from areal_torch.group import SingleRank
from areal_torch.pieces import Box
from areal_torch.state import Piece, load_state, save_state
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.sparse_files import BEYOND, hole, keeps_holes, move_behind, write_behind
from areal_torch.weight_files import WeightFiles

FEW_KB = 1 << 19
"""Half a gibibyte in the unit of `ru_maxrss`: far less than a hole."""
SMALL = {
    "model.norm.weight": torch.arange(12.0),
    "model.layers.0.up.weight": torch.arange(40.0).view(5, 8).bfloat16() / 7,
}


@pytest.fixture(autouse=True)
def sparse(tmp_path: Path) -> Iterator[None]:
    """Files are as good as empty, and are not read into memory."""
    if not keeps_holes(tmp_path):
        pytest.skip(f"files in {tmp_path} keep no holes")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < FEW_KB
    taken = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())
    assert taken < 1 << 24


def test_weights_of_a_folder(tmp_path: Path) -> None:
    """Tensors and boxes behind a head that the model has no use for, and the end of a tensor that is as long."""
    large = hole("model.embed.weight", 2)
    write_behind(tmp_path / "model.safetensors", large, SMALL)
    last = large.shape[1] - 3
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-sum(tensor.nbytes for tensor in SMALL.values()) - 12, os.SEEK_END)
        file.write(torch.tensor([1.5, 2.5, 3.5]).numpy().tobytes())
    write_behind(tmp_path / "other.safetensors", hole("lm_head.weight", 4), {"model.bias": torch.arange(6.0)})
    shapes = {name: tensor.shape for name, tensor in SMALL.items()}
    files = WeightFiles.open(str(tmp_path), {**shapes, large.name: large.shape, "model.bias": (6,)})

    for name, tensor in SMALL.items():
        found = torch.empty_like(tensor)
        files.read(name, [(0, size) for size in tensor.shape], found)
        assert torch.equal(found, tensor)
    box, end, bias = torch.empty(2, 3), torch.empty(3), torch.empty(6)
    files.read("model.layers.0.up.weight", [(1, 3), (4, 7)], box)
    files.read(large.name, [(1, 2), (last, last + 3)], end)
    files.read("model.bias", [(0, 6)], bias)
    assert torch.equal(box, SMALL["model.layers.0.up.weight"][1:3, 4:7].float())
    assert end.tolist() == [1.5, 2.5, 3.5]
    assert torch.equal(bias, torch.arange(6.0))


def test_a_saved_state(tmp_path: Path) -> None:
    """Pieces, parts of pieces and a rank's own tensors; one that is not what was saved is told as ever."""
    saved = {"weight": torch.arange(60.0).view(6, 10), "moment": torch.arange(9.0)}
    save_state(tmp_path / "state", SingleRank(), _pieces(saved), {"random": torch.arange(5)}, {"model": "tiny"})
    file = tmp_path / "state" / "rank-00000.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}  # not mapped from what is written
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    write_behind(file, hole("other"), tensors, metadata)

    found = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    _, own = load_state(tmp_path / "state", SingleRank(), _pieces(found), {"model": "tiny"})
    part = {"weight": Piece(tensor=torch.zeros(2, 4), box=Box(offset=(3, 5), shape=(6, 10)))}
    load_state(tmp_path / "state", SingleRank(), part, {})

    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())
    assert torch.equal(own["random"], torch.arange(5))
    assert torch.equal(part["weight"].tensor, saved["weight"][3:5, 5:9])
    with file.open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(b"torn")
    with pytest.raises(CheckpointError, match="its fingerprint differs"):
        load_state(tmp_path / "state", SingleRank(), _pieces(found), {})


def _pieces(tensors: dict[str, Tensor]) -> dict[str, Piece]:
    return {
        name: Piece(tensor=tensor, box=Box(offset=(0,) * tensor.ndim, shape=tuple(tensor.shape)))
        for name, tensor in tensors.items()
    }


def test_a_folder_that_is_converted(tmp_path: Path) -> None:
    """Every tensor is known by its header, and each is read alone."""
    large = hole("model.embed.weight", 2)
    write_behind(tmp_path / "model.safetensors", large, SMALL)
    reader = HFFolder().open(tmp_path)

    assert {info.name: tuple(info.shape) for info in reader.tensors()} == {
        large.name: large.shape,
        **{name: tuple(tensor.shape) for name, tensor in SMALL.items()},
    }
    assert all(torch.equal(reader.read(name), tensor) for name, tensor in SMALL.items())


def test_a_distributed_checkpoint_that_is_converted(tmp_path: Path) -> None:
    """Its index says where a tensor lies, however far behind."""
    model, target = make_tiny_model(tmp_path / "model"), tmp_path / "dcp"
    convert(model, HFFolder().open(model), target, DCPFolder())
    index = read_index(target / ".metadata")
    for file in {place.relative_path for place in index.storage_data.values()}:
        move_behind(target / file)
    index.storage_data = {
        key: dataclasses.replace(place, offset=place.offset + BEYOND) for key, place in index.storage_data.items()
    }
    (target / ".metadata").write_bytes(pickle.dumps(index))
    reader, wanted = DCPFolder().open(target), load_file(model / "model.safetensors")

    assert {info.name for info in reader.tensors()} == wanted.keys()
    assert all(torch.equal(reader.read(name), tensor) for name, tensor in wanted.items())
