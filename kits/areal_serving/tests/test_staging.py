"""The staged folder: a whole model folder with the bytes that were sent, in memory, for a server to load."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from attrs import evolve
from safetensors import safe_open

from areal_core.contract.errors import CoverageError, WeightSyncError
from areal_core.contract.weights import WeightManifest
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_serving import staging
from areal_serving.model import ServedModel
from areal_serving.staging import Staging
from areal_torch.testing.serving import FolderWeights, OfferedWeights
from areal_torch.testing.sparse_files import hole

from .toy_server import fingerprints


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("tied", [False, True])
def test_the_staged_folder_is_a_whole_model_folder(model_folder, tmp_path, tied, dtype):
    """safetensors reads it, every tensor is that of the sender, tied ones are left out, other files are the model's."""
    folder = model_folder(tied=tied)
    sent = FolderWeights.of(folder)
    sent = evolve_tensors(sent, lambda tensor: tensor.to(dtype))
    staging = Staging(ServedModel.of(str(folder)), tmp_path)

    staged = staging.receive(sent.offer(1), 1, served=0, stop=threading.Event())

    with safe_open(staged.folder / "model.safetensors", framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert set(found) == set(sent.tensors)
    assert all(found[name].dtype == dtype for name in found)
    assert {name: fingerprint(tensor) for name, tensor in found.items()} == dict(staged.receipt.fingerprints)
    assert ("lm_head.weight" in found) is not tied
    kept = {"model.safetensors", *(p.name for p in folder.iterdir())}
    assert kept == {p.name for p in staged.folder.iterdir()}
    staged.close()
    assert not staged.folder.exists()


def evolve_tensors(weights, change):
    """Return the weights with every tensor changed."""
    return FolderWeights({name: change(tensor) for name, tensor in weights.tensors.items()}, weights.tied)


def test_a_sender_that_ties_what_the_model_does_not_is_given_both_copies(model_folder, tmp_path):
    """The untied model gets the head from the embedding; the other way round there is no destination."""
    untied, tied = model_folder(tied=False), model_folder(tied=True)
    staging = Staging(ServedModel.of(str(untied)), tmp_path)

    staged = staging.receive(FolderWeights.of(tied).offer(1), 1, served=0, stop=threading.Event())

    assert (found := fingerprints(str(staged.folder)))["lm_head.weight"] == found["model.embed_tokens.weight"]
    staged.close()
    with pytest.raises(CoverageError, match="no destination of its own"):
        Staging(ServedModel.of(str(tied)), tmp_path).receive(
            FolderWeights.of(untied).offer(1), 1, served=0, stop=threading.Event()
        )


def test_odd_offsets_and_empty_tensors_are_written_as_they_are(tmp_path):
    """A float8 tensor of odd length before wider ones: the next begins at an odd byte."""
    tensors = {
        "a": torch.arange(3.0).to(torch.float8_e4m3fn),
        "b": torch.arange(5.0),
        "c": torch.empty(0),
        "d": torch.tensor(2.5, dtype=torch.bfloat16),
    }
    model = ServedModel(
        path=tmp_path,
        architecture="X",
        vocab_size=1,
        context_length=1,
        num_parameters=9,
        end_ids=(),
        shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
    )
    root = tmp_path / "staged"
    root.mkdir()
    offer = OfferedWeights(manifest_of(tensors.items(), version=1), list(tensors.items()))

    staged = Staging(model, root).receive(offer, 1, served=0, stop=threading.Event())

    with safe_open(staged.folder / "model.safetensors", framework="pt") as file:
        for name, tensor in tensors.items():
            assert fingerprint(tensor) == fingerprint(file.get_tensor(name))
    staged.close()


def test_the_staged_file_lies_in_memory_and_survives_being_closed_for_who_has_it_open(model, weights, tmp_path):
    """No disk is written; an engine that still has it mapped keeps reading."""
    staged = Staging(ServedModel.of(str(model)), tmp_path).receive(
        weights(1).offer(1), 1, served=0, stop=threading.Event()
    )
    file = staged.folder / "model.safetensors"
    assert file.readlink().is_relative_to(Path("/proc"))
    with file.open("rb") as opened:
        before = opened.read()
        staged.close()
        opened.seek(0)
        assert before == opened.read()


def test_names_of_no_dtype_that_travels_are_refused(model, weights, tmp_path):
    """complex64 is floating to nobody."""
    manifest = weights(1).offer(1).manifest
    odd = tuple(evolve(spec, dtype="complex64") for spec in manifest.tensors)
    source = OfferedWeights(WeightManifest(version=1, tensors=odd, tied=manifest.tied), [])
    with pytest.raises(WeightSyncError):
        Staging(ServedModel.of(str(model)), tmp_path).receive(source, 1, served=0, stop=threading.Event())
    assert source.closed


def test_a_tensor_beyond_four_gibibytes_lies_where_the_header_says(monkeypatch):
    """A loader finds what was written there; of the first tensor nothing is written, and there is no room for it."""
    monkeypatch.setattr(staging, "grow", lambda descriptor, size, _path: os.ftruncate(descriptor, size))
    sent = {"norm.weight": torch.arange(12.0), "up.weight": torch.arange(40.0).view(5, 8).bfloat16() / 7}
    file = staging._WeightsFile([hole("embed.weight", 2), *manifest_of(sent.items(), version=1).tensors])

    with file.views() as views:
        for name, tensor in sent.items():
            views[name].copy_(tensor)

    with safe_open(file.segment.path, framework="pt") as opened:
        assert all(torch.equal(opened.get_tensor(name), tensor) for name, tensor in sent.items())
    assert Path(file.segment.path).stat().st_blocks * 512 < 1 << 24
    file.segment.close()
