"""Running `areal` as a process, with distributions of the test's own on its path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that is on the path of the processes `areal` starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def areal(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs `areal WORDS...` in an empty folder."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if key != "AREAL_PLUGINS"}
        env = {**inherited, "PYTHONPATH": str(site), "COLUMNS": "200", **environ}
        command = [sys.executable, "-m", "areal_core.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=100)

    return run
