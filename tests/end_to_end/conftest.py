"""A starting model for every end-to-end test: random weights, made once; and patience."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_tasks.tiny import make_spell_model

HERE = Path(__file__).parent
TIMEOUT_S = 1800
"""Of a test with several whole runs, on a machine that has ten times as much to do as it can."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time than others, where they say nothing themselves."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's architecture before any training."""
    return make_spell_model(tmp_path_factory.mktemp("model"), seed=1)
