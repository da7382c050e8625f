"""Every distribution declares what it imports: itself, or through a package of ours it depends on."""

from __future__ import annotations

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from areal_core.plugins.probe import IMPORT_NAMES

from .clean import PROJECTS, name_of

FOLDERS = {name_of(project): project for project in PROJECTS}
IMPORTED_AS = {
    **IMPORT_NAMES,
    "math-verify": "math_verify",
    "reasoning-gym": "reasoning_gym",
    "pyzmq": "zmq",
    "ipython": "IPython",
    "vl-convert-python": "vl_convert",
}
FROM_THE_ENGINE = {
    "areal-serving": {"uv"},
    "areal-vllm": {"vllm", "vllm_ascend", "torchvision", "uvicorn", "fastapi", "zmq", "numpy"},
    "areal-sglang": {"sglang", "torchvision", "tqdm", "uvicorn", "fastapi", "zmq", "numpy"},
    "areal-ascend": {"torch_npu"},
    "areal-torch": {"torch_npu"},
}
"""What code that runs inside an engine's own interpreter imports: the lock of that environment brings it."""


def imported(project: Path) -> set[str]:
    """Return the top-level modules a distribution imports anywhere, the standard library's left out."""
    found: set[str] = set()
    for path in (project / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        typed = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
        never_run = {id(inner) for node in typed for line in node.body for inner in ast.walk(line)}
        for node in ast.walk(tree):
            if id(node) in never_run:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    own = {path.name for path in (project / "src").iterdir()}
    return found - set(sys.stdlib_module_names) - own


@cache
def brought(name: str) -> frozenset[str]:
    """Return the modules a distribution's requirements bring, with all its extras, through ours to any depth."""
    project = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    chosen = [text for extra, texts in extras.items() if extra not in ("dev", "docs") for text in texts]
    modules: set[str] = set()
    for requirement in map(Requirement, (*project["dependencies"], *chosen)):
        if requirement.name == name:
            continue
        modules.add(IMPORTED_AS.get(requirement.name, requirement.name.replace("-", "_")))
        if requirement.name in FOLDERS and (name, requirement.name) != ("areal-core", requirement.name):
            modules |= brought(requirement.name)
    return frozenset(modules)


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_imported_is_declared(name: str) -> None:
    """A package that is only there by chance is missing in somebody's clean environment."""
    allowed = brought(name) | FROM_THE_ENGINE.get(name, set())

    assert imported(FOLDERS[name]) - allowed == set()


def test_an_import_nobody_declares_is_seen(tmp_path: Path) -> None:
    """The check above finds what it looks for."""
    (tmp_path / "src/mine").mkdir(parents=True)
    (tmp_path / "src/mine/a.py").write_text("def f():\n    import numpy.linalg\n    from os import path\n")

    assert imported(tmp_path) == {"numpy"}
