"""`areal new backend`: the package is complete, and bad names are refused before anything is written."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from areal_conformance.new.command import NOUNS, write_backend
from areal_core.cli.main import main
from areal_core.contract.abilities import ABILITIES
from areal_core.contract.errors import ConfigError
from areal_core.plugins.describe import resolve
from areal_core.plugins.manifest import Manifest


@pytest.mark.parametrize("role", NOUNS)
def test_package_is_whole(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file parses, and the entry point leads to a manifest that answers every word of its role."""
    name = f"whole_{role}"
    target = write_backend(name, role, tmp_path)
    for path in target.rglob("*.py"):
        ast.parse(path.read_text())
    project = tomllib.loads((target / "pyproject.toml").read_text())["project"]
    monkeypatch.syspath_prepend(str(target / "src"))

    manifest = resolve(project["entry-points"][f"areal.{role}"][name])

    assert isinstance(manifest, Manifest)
    assert (role, name) == (manifest.role, manifest.name)
    assert set(ABILITIES[role]) == set(manifest.claims)
    assert callable(resolve(manifest.factory))
    assert project["dependencies"] == ["areal-core>=0.1,<1"]


def test_command_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints where the package is and the two commands that follow."""
    code = main(["new", "backend", "mine", "--role", "infer", "--folder", str(tmp_path)])

    assert code == 0
    printed = capsys.readouterr().out
    assert str(tmp_path / "areal_mine") in printed
    assert "areal conformance run --backend mine --role infer --level 0" in printed


@pytest.mark.parametrize("name", ["Mine", "9lives", "my-engine", "class", ""])
def test_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    """A name that cannot be a package writes nothing."""
    with pytest.raises(ConfigError, match="cannot be the name"):
        write_backend(name, "train", tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_existing_package_is_left_alone(tmp_path: Path) -> None:
    """A second call does not overwrite what the author has written."""
    write_backend("mine", "train", tmp_path)

    with pytest.raises(ConfigError, match="already exists"):
        write_backend("mine", "infer", tmp_path)
