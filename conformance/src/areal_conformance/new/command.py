"""`areal new backend NAME --role ROLE`: a package that installs and passes the static checks at once. `areal new
workflow NAME`: one file that a run imports.

Knows: the files of a plugin and their templates.
Does not know: any backend.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Annotated, Literal

from cyclopts import App, Parameter

from areal_core.contract.abilities import ABILITIES
from areal_core.contract.errors import ConfigError, StorageError
from areal_core.contract.version import CONTRACT

Role = Literal["train", "infer", "scheduler", "transport"]

NOUNS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "train": ("training backend", "TrainEngine"),
        "infer": ("inference backend", "InferenceEngine"),
        "scheduler": ("scheduler", "Scheduler"),
        "transport": ("weight transport", "Transport"),
    }
)
"""Role -> what it is called in a sentence, and the last word of the class."""

app = App(name="new", help="Generate a plugin package, or a workflow in one file.", help_format="plaintext")


@app.command
def backend(
    name: str,
    *,
    role: Annotated[Role, Parameter(help="role: train, infer, scheduler or transport")],
    folder: Annotated[Path, Parameter(help="parent folder of the package")] = Path(),
) -> int:
    """Write a plugin package that installs and passes the static conformance checks.

    Args:
        name: one lower-case word, as written in a run file: `backend: NAME`.
    """
    target = write_backend(name, role, folder)
    print(f"wrote {target}")
    print(f"next: pip install -e '{target}[test]'")
    print(f"      areal conformance run --backend {name} --role {role} --level 0")
    return 0


@app.command
def workflow(name: str, *, folder: Annotated[Path, Parameter(help="where the file goes")] = Path()) -> int:
    """Write a workflow into one file that a run imports: a conversation in turns, to be changed.

    Args:
        name: one lower-case word, as written in a run file: `rollout: {workflow: {name: NAME}}`.
    """
    target = write_workflow(name, folder)
    print(f"wrote {target}")
    print(f"next: areal quickstart 'imports=[{target}]' rollout.workflow.name={name}")
    print(f"      areal conformance run --backend {name} --role workflow --import {target}")
    return 0


def write_workflow(name: str, folder: Path) -> Path:
    """Write `<name>.py` into a folder and return its path.

    Raises:
        ConfigError: the name is no lower-case Python word, or the file is there already.
        StorageError: the folder cannot be written.
    """
    _check_name(name, "workflow", "it is a Python file, and stands in `rollout.workflow.name`")
    target = (folder / f"{name}.py").absolute()
    if target.exists():
        raise ConfigError(f"{target} already exists", fix="choose another name, or remove it")
    title = _title(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(
            _filled("workflow/workflow.py", {"name": name, "Class": title, "Config": f"{title}Config"}), "utf-8"
        )
    except OSError as exc:
        raise StorageError(f"{target} cannot be written", why=str(exc)) from exc
    return target


def write_backend(name: str, role: str, folder: Path) -> Path:
    """Write the package `areal_<name>` into a folder and return its path.

    Raises:
        ConfigError: the name is no lower-case Python word, or the package is there already.
        StorageError: the folder cannot be written.
    """
    _check_name(name, "backend", "it becomes a Python package and stands in backend strings such as fsdp:d4")
    target = (folder / f"areal_{name}").absolute()
    if target.exists():
        raise ConfigError(f"{target} already exists", fix="choose another name, or remove it")
    words = _words(name, role)
    try:
        for path, template in _files(name, role).items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(_filled(f"backend/{template}", words), encoding="utf-8")
    except OSError as exc:
        raise StorageError(f"{target} cannot be written", why=str(exc)) from exc
    return target


def _check_name(name: str, noun: str, why: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a {noun}",
            why=why,
            fix="use a lower-case word of letters, digits and underscores, for example 'mine'",
        )


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = resources.files("areal_conformance.new").joinpath(f"templates/{template}.tmpl").read_text("utf-8")
    return Template(text).substitute(words)


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _words(name: str, role: str) -> dict[str, str]:
    noun, kind = NOUNS[role]
    title = _title(name)
    lines = [f'"{key}": not_yet("not written yet"),' for key in ABILITIES[role]]
    return {
        "name": name,
        "dash": name.replace("_", "-"),
        "Name": title,
        "Class": f"{title}{kind}",
        "Config": f"{title}Config",
        "role": role,
        "role_noun": noun,
        "contract": repr(CONTRACT[role]),
        "imports": "from areal_core.plugins.claims import not_yet\n" if lines else "",
        "claims": "\n        " + "\n        ".join(lines) + "\n    " if lines else "",
    }


def _files(name: str, role: str) -> dict[str, str]:
    package = f"src/areal_{name}"
    return {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".github/workflows/conformance.yml": "conformance.yml",
        f"{package}/__init__.py": "init.py",
        f"{package}/manifest.py": "manifest.py",
        f"{package}/config.py": "config_scheduler.py" if role == "scheduler" else "config.py",
        f"{package}/engine.py": f"engine_{role}.py",
        f"{package}/conformance.py": "conformance.py",
        f"{package}/conformance.toml": "conformance.toml",
        "tests/test_conformance.py": "test_conformance.py",
    }
