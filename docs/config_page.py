"""The reference of all keys, `docs/reference/config.md`, made from the classes of a run and of the plugins here.

    python docs/config_page.py          # writes it into the page

Knows: where the page is. Does not know: any key; the strings below their fields tell.
"""

from __future__ import annotations

from pathlib import Path

from areal_config.find import run_keys
from areal_config.page import options_page, run_page
from areal_core.plugins.registry import Registry

PAGE = Path(__file__).parents[1] / "docs/reference/config.md"
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->"


def page(text: str) -> str:
    """Return the page with the keys of today."""
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    options = options_page(Registry(environ={}))
    return f"{before}{BEGIN}{run_page(run_keys())}\n## Options of plugins\n\n{options}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
