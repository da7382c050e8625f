"""`areal quickstart` and `areal train` as a user types them, to their end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def quickstart(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Return the summary of a run, and what was printed. Any: JSON."""
    return _ended(out, "quickstart", "--out", str(out), *arguments)


def trained(out: Path, example: str, *overrides: str) -> dict[str, Any]:
    """Return the summary of a run of an example, from the root of the repository. Any: JSON."""
    return _ended(out, "train", f"examples/{example}", f"out={out}", *overrides)[0]


def _ended(out: Path, *words: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "areal_core.cli.main", *words]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary, done.stdout
