"""The reference of all keys and the tables of other systems' names, made from the classes and the tables of names.

    python docs/config_page.py          # writes them into their pages

Knows: where the pages are. Does not know: any key; the strings below their fields tell.
"""

from __future__ import annotations

from pathlib import Path

from areal_config.find import run_keys
from areal_config.names.called import SYSTEMS
from areal_config.page import names_page, options_page, run_page
from areal_core.plugins.registry import Registry

DOCS = Path(__file__).parent
PAGE = DOCS / "reference/config.md"
NAMES = {DOCS / f"how-to/coming-from-{system.lower()}.md": system for system in SYSTEMS}
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->"


def pages() -> dict[Path, str]:
    """Return every page with the keys of today."""
    options = options_page(Registry(environ={}))
    made = {PAGE: f"{run_page(run_keys())}\n## Options of plugins\n\n{options}\n"}
    made |= {path: names_page(SYSTEMS[system]) for path, system in NAMES.items()}
    return {path: _between(path.read_text(), text) for path, text in made.items()}


def _between(text: str, made: str) -> str:
    return f"{text.partition(BEGIN)[0]}{BEGIN}{made}{END}{text.partition(END)[2]}"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
