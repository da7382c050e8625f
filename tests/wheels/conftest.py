"""The wheels of every distribution, built once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from .clean import PROJECTS, build, name_of

Wheels = dict[str, Path]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Return distribution -> its wheel."""
    folder = tmp_path_factory.mktemp("wheels") / "dist"
    folder.mkdir()
    build(PROJECTS, folder)
    made = {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert set(made) == {name_of(project) for project in PROJECTS}
    return made
