"""Tiny models, other weights for them, and a check that a test leaves nothing behind."""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from areal_conformance.probes.processes import descendants
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes, once, a tiny model folder of a kind."""
    made: dict[str, Path] = {}

    def make(**options: Any) -> Path:
        key = str(sorted(options.items()))
        if key not in made:
            made[key] = make_tiny_model(tmp_path_factory.mktemp("model") / "m", hidden=16, layers=1, **options)
        return made[key]

    return make


@pytest.fixture
def model(model_folder: Callable[..., Path]) -> Path:
    """Return an untied model."""
    return model_folder(tied=False)


@pytest.fixture
def weights(model: Path) -> Callable[[int], FolderWeights]:
    """Return a function that makes other weights for the model, as different as their seeds."""
    base = FolderWeights.of(model)

    def make(seed: int) -> FolderWeights:
        generator = torch.Generator().manual_seed(seed)
        return FolderWeights({n: torch.randn(t.shape, generator=generator) for n, t in base.tensors.items()}, base.tied)

    return make


def held() -> tuple[object, ...]:
    """Return what this process has: children, descriptors, folders."""
    gc.collect()
    return (
        descendants(os.getpid()),
        psutil.Process().num_fds(),
        sorted(path.name for path in Path(tempfile.gettempdir()).glob("*areal-toy-*")),
    )


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that a test leaves no process, thread, descriptor, folder or segment behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    subprocess.Popen(["true"]).wait()
    before, others = held(), set(threading.enumerate())  # of which some may end meanwhile: they are other tests'
    yield
    began = [each for each in set(threading.enumerate()) - others if each.name.startswith("areal-")]
    for thread in began:
        thread.join(10)
    assert [thread.name for thread in began if thread.is_alive()] == []
    assert before == held()
