"""`areal` as a user runs it: a process of its own, in a folder, with the distributions of a site."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from .warm import warm_process

Run = Callable[..., subprocess.CompletedProcess[str]]
"""`areal_command(site, folder)`: takes the words, and variables of the environment by name."""


def areal_command(site: Path, folder: Path) -> Run:
    """Return a function that runs `areal WORDS...` as a process in `folder`, with the distributions of `site`."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if key != "AREAL_PLUGINS"}
        env = {**inherited, "PYTHONPATH": str(site), "COLUMNS": "200", **environ}
        return warm_process().run(words, env, folder)

    return run
