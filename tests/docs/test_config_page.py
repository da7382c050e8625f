"""The reference of keys is what the classes say today, the tables of other systems' names what errors say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_have_the_keys_and_names_of_today() -> None:
    """Made again, they do not change; `python docs/config_page.py` renews them."""
    made = runpy.run_path(str(ROOT / "docs/config_page.py"))["pages"]()

    assert len(made) == 4
    for path, text in made.items():
        assert path.read_text() == text, path.name
        assert text.count("\n| `") > 50
