"""What `areal_core` offers by name: these names, each when it is first used, and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import areal_core

ROOT = Path(__file__).parents[2]
PUBLIC = (Path(__file__).parent / "public_names.txt").read_text().split()
"""Sorted. A name added there is a promise kept until the next major version."""

_LIGHT = """
import sys
before = set(sys.modules)
import areal_core
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
ours = [name for name in sys.modules if name.partition(".")[0] == "areal_core"]
print(sorted(loaded), ours)
"""


def test_the_public_names_are_these() -> None:
    """A name is public when it stands in the file, and only then."""
    assert sorted(PUBLIC) == PUBLIC == dir(areal_core)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_importable(name: str) -> None:
    """Each leads to an object."""
    assert getattr(areal_core, name) is not None


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    """What is asked for and not public is refused, and the refusal says where the public names are."""
    with pytest.raises(AttributeError, match=r"no attribute 'StalenessGate'; dir\(areal_core\) lists the public names"):
        areal_core.StalenessGate  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_is_light() -> None:
    """It loads one module of ours, and none of anybody else's."""
    done = subprocess.run([sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True)

    assert done.stdout == "['areal_core'] ['areal_core']\n"


def test_type_checkers_see_the_same_names() -> None:
    """The stub names what the package gives at run time."""
    tree = ast.parse((ROOT / "src/areal_core/__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name for node in imports for alias in node.names if alias.name != "*"}
    (star,) = [node.module for node in imports if node.names[0].name == "*"]

    assert star == "areal_core.contract"
    assert seen | set(areal_core.contract.__all__) | {"__version__"} == set(PUBLIC)


@pytest.mark.parametrize(
    "path", ["tests/end_to_end/colours.py", "docs/how-to/your-own-task.md", "docs/tutorial/train-your-first-model.md"]
)
def test_a_one_file_example_imports_from_the_package_alone(path: str) -> None:
    """What users are shown needs no private-looking module."""
    modules = re.findall(r"^(?:from|import) (areal_core\S*)", (ROOT / path).read_text(), re.MULTILINE)

    assert set(modules) == {"areal_core"}
