"""`areal quickstart` as a user types it, to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def quickstart(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Return the summary of a run, and what was printed. Any: JSON."""
    words = [sys.executable, "-m", "areal_core.cli.main", "quickstart", "--out", str(out), *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary, done.stdout
