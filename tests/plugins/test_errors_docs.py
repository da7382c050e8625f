"""Every error code has a page, every page a code, and the tree drawn in the docstring is the tree of classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_core.contract import errors
from areal_core.contract.errors import ArealError

PAGES = Path(__file__).parents[2] / "docs" / "errors"


def kinds() -> list[type[ArealError]]:
    """Return every error class of the contract but the base."""
    classes = (obj for _, obj in inspect.getmembers(errors, inspect.isclass))
    return sorted((c for c in classes if issubclass(c, ArealError) and c is not ArealError), key=lambda c: c.code)


def drawn() -> Iterator[tuple[str, str, str]]:
    """Yield (name, builtin base or '', code) for every line of the tree in the module's docstring."""
    for match in re.finditer(r"^ +[x+] (\w+)(?: \((\w+)\))? +E(\d+)", errors.__doc__ or "", re.MULTILINE):
        yield match[1], match[2] or "", f"E{match[3]}"


def test_codes_are_unique() -> None:
    """A code leads to one page."""
    codes = [kind.code for kind in kinds()]

    assert len(set(codes)) == len(codes)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    """Neither an error without help nor a page about an error that is gone."""
    assert {path.stem for path in PAGES.glob("AREAL-*.md")} == {f"AREAL-{kind.code}" for kind in kinds()}


def test_the_index_lists_every_code_once() -> None:
    """The index is complete and in order."""
    text = (PAGES / "index.md").read_text()

    assert re.findall(r"\(AREAL-(E\d+)\.md\)", text) == [kind.code for kind in kinds()]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.code)
def test_a_page_says_what_why_and_how(kind: type[ArealError]) -> None:
    """Each page has the title, the three sections, and an example as it would be printed."""
    text = (PAGES / f"AREAL-{kind.code}.md").read_text()

    assert text.startswith(f"# AREAL-{kind.code}: {kind.__name__}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it means", "Usual causes", "How to fix it", "Example"]
    assert re.search(rf"^{kind.__name__}: .+ \[AREAL-{kind.code}\]$", text, re.MULTILINE)


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    """Names, codes and builtin bases in the picture are those of the code."""
    expected = []
    for kind in kinds():
        builtin = [base.__name__ for base in kind.__bases__ if not issubclass(base, ArealError)]
        expected.append((kind.__name__, builtin[0] if builtin else "", kind.code))

    assert expected == list(drawn())


def test_the_tree_is_indented_as_the_classes_inherit() -> None:
    """A class drawn under another derives from it."""
    parent = ""
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"( +)([x+]) (\w+)", line)
        if match is None:
            continue
        if match[2] == "x":
            parent = match[3]
            assert issubclass(getattr(errors, parent), ArealError)
        else:
            assert getattr(errors, match[3]).__bases__[0].__name__ == parent
