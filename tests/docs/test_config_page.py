"""The reference of keys is what the classes say today."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_keys_of_today() -> None:
    """Made again, the page does not change; `python docs/config_page.py` renews it."""
    made = runpy.run_path(str(ROOT / "docs/config_page.py"))
    text = made["PAGE"].read_text()

    assert made["page"](text) == text
    assert text.count("\n| `") > 200
