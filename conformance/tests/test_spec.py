"""Every check points at a sentence of the contract that is there."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from areal_conformance.checks import all_checks
from areal_conformance.spec import MODULES, link

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def is_there(target: str) -> bool:
    """Tell whether a page has a heading of that slug, or its module defines that name."""
    page, _, anchor = target.partition("#")
    text = (ROOT / page).read_text()
    slugs = {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in HEADING.findall(text)}
    if not anchor or anchor in slugs:
        return True
    for module in (*MODULES.values(), "areal_core.contract.batch"):
        if anchor.startswith(f"{module}.") and f"::: {module}" in text:
            return _has(importlib.import_module(module), anchor.removeprefix(f"{module}."))
    return False


def _has(owner: object, path: str) -> bool:
    *classes, last = path.split(".")
    found = reduce(getattr, classes, owner)
    return hasattr(found, last) or last in getattr(found, "__annotations__", {})


@pytest.mark.parametrize("check", all_checks().values(), ids=lambda check: str(check.id))
def test_spec_is_there(check: object) -> None:
    """The page and the anchor a check names exist."""
    target = link(check.spec)  # type: ignore[attr-defined]

    assert is_there(target), f"{target} is not in the documentation"


def test_short_names_find_the_protocol() -> None:
    """A method's short name leads to the protocol that has it."""
    expected = "docs/contract/train.md#areal_core.contract.train.TrainEngine.send_weights"

    assert expected == link("train#send_weights")


def test_what_is_not_there_is_seen() -> None:
    """A heading that was renamed and a method that is gone are noticed."""
    assert not is_there("docs/contract/train.md#no-such-heading")
    assert not is_there("docs/contract/train.md#areal_core.contract.train.TrainEngine.no_such_method")
