"""The model that tests of the reference trainer share."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_torch.testing.models import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))
