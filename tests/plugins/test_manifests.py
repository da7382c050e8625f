"""Level 0: every manifest of ours is light, well formed, and names things that exist."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from areal_core.contract.errors import PluginError
from areal_core.plugins.catalogue import CORE, OFFICIAL
from areal_core.plugins.discovery import Entry, discover
from areal_core.plugins.install import pip_install
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
ENTRIES = sorted(
    (e for es in discover({}).roles.values() for e in es if e.distribution in OURS), key=lambda e: (e.group, e.name)
)
_CHILD = """
import sys
for name in {heavy!r}:
    sys.modules[name] = None
import importlib
module, _, attribute = sys.argv[1].partition(":")
getattr(importlib.import_module(module), attribute)
loaded = [name for name in {heavy!r} if sys.modules.get(name) is not None]
assert not loaded, loaded
"""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.group}:{e.name}")
def test_our_manifests_describe(entry: Entry) -> None:
    """The manifest is of its role and name, speaks our contract, and its claims can be read."""
    assert Registry(environ={}).describe(entry.group.removeprefix("areal."), entry.name).name == entry.name


@pytest.mark.parametrize("module", sorted({e.value for e in ENTRIES}))
def test_our_manifests_import_nothing_heavy(module: str) -> None:
    """With the engines blocked the manifest module still imports, so a listing never pays for one."""
    done = subprocess.run([sys.executable, "-c", _CHILD.format(heavy=HEAVY), module], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.group}:{e.name}")
def test_our_factories_and_configs_are_where_the_manifest_says(entry: Entry) -> None:
    """The modules named by a manifest exist; whether they load is the engines' own test."""
    manifest = Registry(environ={}).describe(entry.group.removeprefix("areal."), entry.name)
    targets = [manifest.factory, *([manifest.config] if manifest.config else [])]

    assert [target for target in targets if find_spec(target.partition(":")[0]) is None] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.group}:{e.name}")
def test_the_extra_in_the_pip_command_exists(entry: Entry) -> None:
    """A manifest with requirements names an extra of its own distribution that brings them."""
    manifest = Registry(environ={}).describe(entry.group.removeprefix("areal."), entry.name)
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
