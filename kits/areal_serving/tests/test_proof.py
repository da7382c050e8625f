"""A staged folder is read in a thread of its own, and every byte counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from areal_core.weights.tensors import fingerprint
from areal_serving.proof import Proof, read_tensors

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def folder(path: Path) -> Path:
    save_file(TENSORS, path / "model.safetensors")
    return path


def finished(proof: Proof) -> dict[str, object]:
    proof.join()
    return proof.state()


def test_fingerprints_are_the_senders(tmp_path: Path) -> None:
    """Both sides hash dtype, shape and bytes alike."""
    state = finished(Proof(folder(tmp_path)))

    assert state == {
        "done": True,
        "fingerprints": {name: fingerprint(tensor) for name, tensor in TENSORS.items()},
        "problem": "",
    }


def test_files_behind_links_are_read(tmp_path: Path) -> None:
    """Staged weights lie in memory; the folder holds a link to them."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged/model.safetensors").symlink_to(folder(tmp_path / "memory") / "model.safetensors")

    assert dict(read_tensors(tmp_path / "staged")).keys() == TENSORS.keys()


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A thread has nobody to raise to."""
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    state = finished(Proof(tmp_path))

    assert state["done"] is True
    assert "SafetensorError" in str(state["problem"])


def test_a_folder_that_is_to_come_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One named without a place is made by every host of a replica for itself, by some later than by others."""
    monkeypatch.chdir(tmp_path)
    proof = Proof(Path("v1-0a"))
    before = proof.state()
    (tmp_path / "arriving").mkdir()
    folder(tmp_path / "arriving").rename("v1-0a")

    assert before == {"done": False}
    assert set(finished(proof)["fingerprints"]) == set(TENSORS)  # type: ignore[call-overload]
