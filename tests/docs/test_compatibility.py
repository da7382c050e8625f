"""The compatibility table of the documentation is what the manifests say today."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_up_to_date() -> None:
    """Made again, the page does not change; `python docs/compatibility.py` renews it."""
    made = runpy.run_path(str(ROOT / "docs/compatibility.py"))
    text = made["PAGE"].read_text()

    assert made["page"](text) == text
    assert len(list(made["rows"]())) >= 8
