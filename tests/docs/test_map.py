"""The map names folders and files there are, and every package and every folder of the core."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "docs/map.md").read_text()


def test_every_file_the_map_names_is_there() -> None:
    """A module that moved or was renamed is noticed here."""
    files = {
        str(path.relative_to(ROOT))
        for top in ("src", "kits", "plugins", "conformance")
        for path in ROOT.glob(f"{top}/**/*.py")
    }

    named = set(re.findall(r"`([\w/]+\.py)`", MAP))
    assert len(named) > 10
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in files)} == set()


def test_every_package_and_every_folder_of_the_core_is_on_the_map() -> None:
    """A new room is drawn when it is built."""
    packages = {
        path.parent.name for path in [*ROOT.glob("kits/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    }
    folders = {f"`{path.parent.name}/`" for path in ROOT.glob("src/areal_core/*/__init__.py")}

    assert {name for name in packages if f"`{name}`" not in MAP} == set()
    assert {name for name in folders if name not in MAP} == set()
