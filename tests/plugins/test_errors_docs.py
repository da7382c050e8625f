"""Every error code has a page, every page a code, and the index says what the classes say."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from areal_agentic.sandbox import SandboxError
from areal_core.contract import errors
from areal_core.contract.errors import ArealError
from areal_report.watch.judge import GuardStop

PAGES = Path(__file__).parents[2] / "docs" / "errors"


def kinds() -> list[type[ArealError]]:
    """Return every error class of the contract but the base, and those of our plugins that have a code of their own."""
    classes = [*(obj for _, obj in inspect.getmembers(errors, inspect.isclass)), GuardStop, SandboxError]
    return sorted((c for c in classes if issubclass(c, ArealError) and c is not ArealError), key=lambda c: c.code)


def test_codes_are_unique() -> None:
    """A code leads to one page."""
    codes = [kind.code for kind in kinds()]

    assert len(set(codes)) == len(codes)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    """Neither an error without help nor a page about an error that is gone."""
    assert {path.stem for path in PAGES.glob("AREAL-*.md")} == {f"AREAL-{kind.code}" for kind in kinds()}


def test_the_index_lists_every_error_as_its_class_has_it() -> None:
    """Complete and in order: code, name, builtin base, and the meaning in the words of the class."""
    rows = []
    for kind in kinds():
        builtin = "".join(f" (`{base.__name__}`)" for base in kind.__bases__ if not issubclass(base, ArealError))
        page = f"[AREAL-{kind.code}](AREAL-{kind.code}.md)"
        rows.append(f"| {page} | `{kind.__name__}`{builtin} | {inspect.getdoc(kind)} |")

    assert [line for line in (PAGES / "index.md").read_text().splitlines() if line.startswith("| [")] == rows


def test_a_class_derives_from_the_one_of_its_family() -> None:
    """E101 is an E100, and E100 an ArealError."""
    family = {kind.code: kind for kind in kinds() if kind.code.endswith("00")}

    assert all(kind.__bases__[0] in (ArealError, family[f"{kind.code[:2]}00"]) for kind in kinds())
    assert all(kind.__bases__[0] is ArealError for kind in family.values())


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.code)
def test_a_page_says_what_why_and_how(kind: type[ArealError]) -> None:
    """Each page has the title, the three sections, and an example as it would be printed."""
    text = (PAGES / f"AREAL-{kind.code}.md").read_text()

    assert text.startswith(f"# AREAL-{kind.code}: {kind.__name__}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it means", "Usual causes", "How to fix it", "Example"]
    assert re.search(rf"^{kind.__name__}: .+ \[AREAL-{kind.code}\]$", text, re.MULTILINE)
