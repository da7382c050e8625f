"""The recipes are those of the presets: page, example, place in the navigation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _recipes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipes", ROOT / "docs/recipes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECIPES = _recipes()


@pytest.mark.parametrize("path", RECIPES.made(), ids=lambda path: path.name)
def test_a_recipe_is_what_its_preset_says(path: Path) -> None:
    """`python docs/recipes.py` writes it anew."""
    assert path.read_text() == RECIPES.made()[path]


def test_there_is_no_recipe_without_a_preset_and_every_page_is_in_the_navigation() -> None:
    """A preset that goes takes its files with it."""
    lying = {*RECIPES.PAGES.glob("*.md"), *RECIPES.EXAMPLES.glob("*.yaml")}
    navigation = (ROOT / "mkdocs.yml").read_text()

    assert lying == set(RECIPES.made())
    assert [page.name for page in RECIPES.PAGES.glob("*.md") if f"- recipes/{page.name}" not in navigation] == []
