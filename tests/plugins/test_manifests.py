"""Level 0: every manifest of ours is light, well formed, and names things that exist."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from areal_core.contract.errors import PluginError
from areal_core.plugins.catalogue import CORE, OFFICIAL
from areal_core.plugins.discovery import Entry, discover
from areal_core.plugins.install import pip_install
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry

ROOT = Path(__file__).parents[2]
OURS = {distribution for names in OFFICIAL.values() for distribution in names.values()}
HEAVY = (
    "torch",
    "transformers",
    "tensordict",
    "ray",
    "vllm",
    "sglang",
    "megatron",
    "torch_npu",
    "datasets",
    "omegaconf",
    "cattrs",
)
REGISTRY = Registry(environ={})
ENTRIES = sorted(
    (e for es in discover({}).roles.values() for e in es if e.distribution in OURS), key=lambda e: (e.group, e.name)
)
_CHILD = """
import importlib, json, os, sys, traceback
for name in {heavy!r}:
    sys.modules[name] = None
import areal_core.plugins.hooks, areal_core.plugins.manifest  # what most of them import

def first_import(target, told):
    try:
        module, _, attribute = target.partition(":")
        getattr(importlib.import_module(module), attribute)
        loaded = [name for name in {heavy!r} if sys.modules.get(name) is not None]
        assert not loaded, loaded
    except BaseException:
        os.write(told, traceback.format_exc().encode())
    os._exit(0)

found = {{}}
for target in sys.argv[1:]:
    hear, told = os.pipe()
    if not (child := os.fork()):
        first_import(target, told)
    os.close(told)
    with open(hear) as file:
        found[target] = file.read()
    assert os.waitpid(child, 0)[1] == 0, target
print(json.dumps(found))
"""


@cache
def manifest_of(entry: Entry) -> Manifest:
    """Return what an entry point leads to."""
    return REGISTRY.describe(entry.group.removeprefix("areal."), entry.name)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.group}:{e.name}")
def test_our_manifests_describe(entry: Entry) -> None:
    """The manifest is of its role and name, speaks our contract, and its claims can be read."""
    assert manifest_of(entry).name == entry.name


MODULES = sorted({entry.value for entry in ENTRIES})


@pytest.fixture(scope="module")
def imported() -> dict[str, str]:
    """Return what went wrong by module: each is imported in a fork of one process that has nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(heavy=HEAVY), *MODULES], capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")
    wrong: dict[str, str] = json.loads(done.stdout)
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_our_manifests_import_nothing_heavy(module: str, imported: dict[str, str]) -> None:
    """With the engines blocked the manifest module still imports, so a listing never pays for one."""
    assert imported[module] == ""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.group}:{e.name}")
def test_our_factories_and_configs_are_where_the_manifest_says(entry: Entry) -> None:
    """The modules named by a manifest exist; whether they load is the engines' own test."""
    manifest = manifest_of(entry)
    targets = [manifest.factory, *([manifest.config] if manifest.config else [])]

    assert [target for target in targets if find_spec(target.partition(":")[0]) is None] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.group}:{e.name}")
def test_the_extra_in_the_pip_command_exists(entry: Entry) -> None:
    """A manifest with requirements names an extra of its own distribution that brings them."""
    manifest = manifest_of(entry)
    folder = ROOT if entry.distribution == CORE else ROOT / "plugins" / entry.distribution.replace("-", "_")
    project = _project(folder)
    extras = project.get("optional-dependencies", {})
    base = {Requirement(text).name for text in project["dependencies"]}
    if "areal-torch" in base:
        base |= {Requirement(text).name for text in _project(ROOT)["optional-dependencies"]["torch"]}

    if {Requirement(text).name for text in manifest.requires} - base:
        assert manifest.extra in extras


def _project(folder: Path) -> dict[str, Any]:  # Any: toml
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def test_our_names_are_in_the_catalogue() -> None:
    """What we publish can be suggested to those who have not installed it."""
    known = {(role, name): dist for role, names in OFFICIAL.items() for name, dist in names.items()}

    assert [e for e in ENTRIES if known.get((e.group.removeprefix("areal."), e.name)) != e.distribution] == []


@pytest.mark.parametrize("role", sorted(OFFICIAL))
def test_the_catalogue_is_answered_with_its_command(role: str) -> None:
    """Every official name that is not installed is answered with the one command that brings it."""
    registry = Registry(environ={})
    for name, distribution in OFFICIAL[role].items():
        if name not in registry.names(role):
            with pytest.raises(PluginError) as caught:
                registry.describe(role, name)
            assert caught.value.fix == pip_install(distribution)
