"""A starting model for every end-to-end test: random weights, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_tasks.tiny import make_spell_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's architecture before any training."""
    return make_spell_model(tmp_path_factory.mktemp("model"), seed=1)
