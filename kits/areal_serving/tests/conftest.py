"""Tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_torch.testing.models import make_tiny_model


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
