"""The page about Python runs as it stands, block by block, in one script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from areal_torch.testing.models import make_tiny_model

PAGE = Path(__file__).parents[3] / "docs/how-to/python.md"


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """Every block of Python after the other; only the model is another."""
    make_tiny_model(tmp_path / "path/of/a/model")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 4
    (tmp_path / "page.py").write_text("\n".join([*blocks, "print(len(result.metrics), again.config.steps)"]))

    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 4"
    assert (tmp_path / "runs/third/summary.json").is_file() and (tmp_path / "doubles.yaml.task/reward.py").is_file()
