"""The ten lines of Python on the first page run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from areal_torch.testing.models import make_tiny_model

ROOT = Path(__file__).parents[2]


def test_the_ten_lines_of_the_readme_train(tmp_path: Path) -> None:
    """A data set, a reward and a call of `train` are a whole run; only the starting model is another here."""
    found = re.search(r"^```python title=\"doubles.py\"\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert found is not None
    (tmp_path / "doubles.py").write_text(found[1])
    make_tiny_model(tmp_path / "runs/quickstart/checkpoints/step-000100/model")

    done = subprocess.run([sys.executable, "doubles.py"], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "runs/run/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 20)
