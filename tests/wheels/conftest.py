"""The wheels of every distribution, built once a session, whatever the number of workers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from .clean import PROJECTS, build, name_of

Wheels = dict[str, Path]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Return distribution -> its wheel."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "wheels" / "dist"
    with (shared / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be building them
        if not folder.exists():
            part = shared / "wheels" / "part"
            part.mkdir(parents=True)
            build(PROJECTS, part)
            part.rename(folder)
    made = {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert set(made) == {name_of(project) for project in PROJECTS}
    return made
