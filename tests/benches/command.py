"""`areal` as a user runs it: a process, in a folder, with the distributions of a site."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]
"""`areal_command(site, folder)`: takes the words, and variables of the environment by name."""


def areal_command(site: Path, folder: Path) -> Run:
    """Return a function that runs `areal WORDS...` as a process in `folder`, with the distributions of `site`."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if key != "AREAL_PLUGINS"}
        env = {**inherited, "PYTHONPATH": str(site), "COLUMNS": "200", **environ}
        command = [sys.executable, "-m", "areal_core.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=100)

    return run
