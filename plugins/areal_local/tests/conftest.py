"""Running `areal` as a process, with distributions of the test's own on its path."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benches.command import Run, areal_command


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that is on the path of the processes `areal` starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def areal(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs `areal WORDS...` in an empty folder."""
    return areal_command(site, tmp_path)
