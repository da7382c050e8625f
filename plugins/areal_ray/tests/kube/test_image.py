"""The Dockerfile of the repository: what it copies and installs is there, nothing of ours is looked for elsewhere."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[4]
FILE = (ROOT / "plugins" / "areal_ray" / "Dockerfile").read_text()
PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
STEPS = [
    (line.split()[0], shlex.split(line)[1:])
    for line in re.sub(r"\\\n", " ", FILE).splitlines()
    if line and not line.startswith("#")
]


def _copied() -> set[str]:
    return {source for step, words in STEPS if step == "COPY" for source in words[:-1]}


def _installed() -> Iterator[tuple[Path, str]]:
    """Yield folder and extras of each package of ours that pip is given."""
    (words,) = [words for step, words in STEPS if step == "RUN" and "." in words]
    for word in words[words.index(".") :]:
        found = re.fullmatch(r"([^[]+)(?:\[(.*)\])?", word)
        assert found is not None
        folders = sorted(ROOT.glob(found[1].removeprefix("./"))) if found[1] != "." else [ROOT]
        assert folders, f"{word} is not there"
        yield from ((folder, found[2] or "") for folder in folders if folder.is_dir())


def _project(folder: Path) -> Any:  # Any: a table of toml
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_what_it_copies_is_there() -> None:
    """And no more: tests, docs and a developer's own environment stay outside."""
    assert all((ROOT / source).exists() for source in _copied())
    assert {"src", "kits", "plugins"} <= _copied()


def test_what_it_installs_is_among_what_it_copies_and_has_the_extras_it_names() -> None:
    """Every folder has a project."""
    for folder, extras in _installed():
        project = _project(folder)
        assert folder == ROOT or folder.relative_to(ROOT).parts[0] in _copied()
        for extra in filter(None, extras.split(",")):
            assert extra in project["optional-dependencies"], f"{project['name']} has no extra {extra}"


def test_no_package_of_ours_is_looked_for_on_an_index() -> None:
    """None is published: whatever one needs of another is installed from here, in the same command."""
    ours = {_project(folder)["name"] for folder, _ in _installed()}
    needed = set[str]()
    for folder, extras in _installed():
        project = _project(folder)
        lists = [
            project["dependencies"],
            *(project["optional-dependencies"][e] for e in filter(None, extras.split(","))),
        ]
        needed |= {Requirement(each).name for each in (word for words in lists for word in words)}

    assert {name for name in needed if name.startswith("areal-")} <= ours
    assert "areal-ray" in ours and ("plugins/areal_ray", "engine") in {
        (folder.relative_to(ROOT).as_posix(), extras) for folder, extras in _installed()
    }


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_engines_have_recipes(name: str) -> None:
    """Those that the file and its comment name, for accelerators too."""
    assert name in FILE
    assert (ROOT / f"plugins/areal_{name}/src/areal_{name}/locks/cuda.txt").exists()


def test_the_python_is_that_of_the_locks() -> None:
    """Environments of engines are made with it."""
    (image,) = [words[0] for step, words in STEPS if step == "FROM"]
    assert image.startswith("python:3.11-")
    assert "# python: 3.11\n" in (ROOT / "plugins/areal_vllm/src/areal_vllm/locks/cuda.txt").read_text()


def test_the_page_has_the_command_of_the_file() -> None:
    """It is built as the file itself says."""
    (command,) = re.findall(r"^#   (docker build -f plugins/areal_ray/Dockerfile -t .*)$", FILE, re.M)
    assert command in PAGE
