"""What a worker answers when it is asked again and again."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from areal_vllm.inside.worker import WorkerExtension


def staged(path: Path, value: float) -> str:
    path.mkdir()
    save_file({"a": torch.full((2,), value)}, path / "model.safetensors")
    return str(path)


def proved(worker: WorkerExtension, folder: str) -> object:
    worker.areal_prove(folder)
    assert worker.areal_proof is not None
    worker.areal_proof.join()
    return worker.areal_prove(folder)


def test_a_proof_stays_until_another_is_asked_for(tmp_path: Path) -> None:
    """Workers of one replica are asked together: one that is done early must still be done when the last is."""
    worker = WorkerExtension()
    first = proved(worker, staged(tmp_path / "v1", 1.0))

    assert worker.areal_prove(str(tmp_path / "v1")) == first
    assert proved(worker, staged(tmp_path / "v2", 2.0)) != first
