"""What authors of plugins are told they may import is there, and says what it is for."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/reference/helpers.md"
NAMES = re.findall(r"^\| `([\w.]+)` \| \S", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
"""A name on the page is a promise kept until the next major version."""


def test_the_page_lists_them() -> None:
    """Each once."""
    assert len(NAMES) == len(set(NAMES)) > 20
    assert {name.partition(".")[0] for name in NAMES} <= {
        "areal_core",
        "areal_torch",
        "areal_serving",
        "areal_conformance",
    }


def test_the_page_lists_everything_that_adapters_are_made_of() -> None:
    """The classes of `areal_conformance.adapter`, all of which tutorials tell authors to import."""
    found = importlib.import_module("areal_conformance.adapter")
    public = {name for name, one in vars(found).items() if inspect.isclass(one) and one.__module__ == found.__name__}

    assert {f"{found.__name__}.{name}" for name in public} == {one for one in NAMES if found.__name__ in one}


@pytest.mark.parametrize("name", NAMES)
def test_a_helper_is_importable_and_documented(name: str) -> None:
    """By the name on the page, and no part of the way is private."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)

    assert inspect.getdoc(found)
    assert not [part for part in name.split(".") if part.startswith("_")]
