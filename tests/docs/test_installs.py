"""Every `pip install` the documentation shows installs something there is, with extras that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for folder in ("", "docs/**", "examples", "benchmarks", "kits/*", "plugins/*", "conformance/**")
    for page in ROOT.glob(f"{folder}/*.md".lstrip("/"))
    if page.name != "CHANGELOG.md" and not page.relative_to(ROOT).match("docs/conformance/*/*/*.md")
)
MANIFESTS = [ROOT / "pyproject.toml", *ROOT.glob("kits/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
MANIFESTS += [ROOT / "conformance/pyproject.toml", ROOT / "conformance/proof/pyproject.toml"]

_COMMAND = re.compile(r"pip install ([^`\n]+)")
_OURS = re.compile(r"^(areal-[a-z-]+)(?:\[([\w,]+)\])?$")
_PATH = re.compile(r"^((?:\.|plugins/\w+|kits/\w+|conformance(?:/\w+)?))(?:\[([\w,]+)\])?$")
_NAMED = re.compile(r"`(areal-[a-z]+\[[\w,]+\])`")
_EXAMPLES = {"areal-toy", "areal-mine"}  # packages of readers


def extras() -> dict[str, set[str]]:
    """Return the extras of every distribution, by its name and by its folder."""
    found = {}
    for path in MANIFESTS:
        project = tomllib.loads(path.read_text())["project"]
        folder = str(path.parent.relative_to(ROOT))
        found[project["name"]] = found[folder] = set(project.get("optional-dependencies", {}))
    return found


def missing(words: list[str]) -> list[str]:
    """Return the words that name a distribution, a folder or an extra of ours which does not exist."""
    known, faults = extras(), []
    for word in words:
        match = _OURS.match(word) or _PATH.match(word)
        if match and match[1] not in _EXAMPLES:
            asked = set(match[2].split(",")) if match[2] else set()
            faults += [word] if match[1] not in known or asked - known[match[1]] else []
    return faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_installs_exists(page: Path) -> None:
    """A moved extra would install nothing and only warn."""
    text = page.read_text()
    words = [word.strip("'\",;") for line in _COMMAND.findall(text) for word in line.partition("#")[0].split()]

    assert missing(words + _NAMED.findall(text)) == []


def test_a_wrong_extra_and_a_wrong_folder_are_seen() -> None:
    """The check above does not pass for want of anything to check."""
    assert missing(["areal-core[hub]", "plugins/areal_nothing", "areal-fsdp[engine]", "torch"]) == [
        "areal-core[hub]",
        "plugins/areal_nothing",
    ]
