"""Every page of the documentation is reached by links from its first page, and stands in the site's navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path for path in DOCS.rglob("*.md") if not path.relative_to(DOCS).match("conformance/*/*/*.md")}
LISTED_BY_THEIR_INDEX = ("decisions", "errors")

_LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")
_TAG = re.compile(r"!![\w/:.]+")


def linked(page: Path) -> set[Path]:
    """Return the pages a page links to."""
    targets = {(page.parent / target).resolve() for target in _LINK.findall(page.read_text()) if "://" not in target}
    return targets & PAGES


def navigation(node: object) -> Iterator[Path]:
    """Yield the pages of `nav`, however deep."""
    if isinstance(node, str):
        yield DOCS / node
    elif isinstance(node, list):
        for item in node:
            yield from navigation(item)
    elif isinstance(node, dict):
        for item in node.values():
            yield from navigation(item)


def test_every_page_is_reached_from_the_first() -> None:
    """A page nobody links to is a page nobody reads."""
    seen, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            todo += linked(page)

    assert sorted(str(page.relative_to(DOCS)) for page in PAGES - seen) == []


def test_the_first_page_links_every_guide_itself() -> None:
    """Tutorials, how-tos, explanations and the indexes are one click away."""
    guides = {page for page in PAGES if page.parent.name in ("tutorial", "how-to", "explanation")}
    indexes = {page for page in PAGES if page.name == "index.md"} - {DOCS / "index.md"}

    assert sorted(str(page.relative_to(DOCS)) for page in (guides | indexes) - linked(DOCS / "index.md")) == []


def test_every_page_stands_in_the_navigation() -> None:
    """Decisions and error codes are listed by their own index."""
    settings = yaml.safe_load(_TAG.sub("", (DOCS.parent / "mkdocs.yml").read_text()))
    listed = {p for p in PAGES if p.parent.name in LISTED_BY_THEIR_INDEX and p.name != "index.md"}

    shown = set(navigation(settings["nav"]))
    assert sorted(str(page.relative_to(DOCS)) for page in (PAGES - listed) ^ shown) == []
