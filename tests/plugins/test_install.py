"""The command in a fix line: it works where it is shown, and names nothing that does not exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core.contract.errors import CapabilityError
from areal_core.plugins import install
from areal_core.plugins.catalogue import COMMANDS, OFFICIAL, PROOF
from areal_core.plugins.install import CHECKOUT, pip_install
from areal_core.plugins.registry import Registry
from areal_local.inventory import inventory

SOURCES = [path for folder in ("src", "kits", "plugins", "conformance") for path in (CHECKOUT / folder).rglob("*.py")]
NAMED = {text for path in SOURCES for text in re.findall(r"pip_install\(\"([^\"]+)\"", path.read_text())}
HINTED = sorted({*NAMED, *COMMANDS.values(), *(name for names in OFFICIAL.values() for name in names.values())})


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but the core be installed, and the shell be in the checkout."""
    monkeypatch.setattr(install, "installed_version", {"areal-core": "0.1.0"}.get)
    monkeypatch.chdir(CHECKOUT)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        ("areal-fsdp", "pip install -e plugins/areal_fsdp"),
        (
            "areal-core[local]",
            "pip install -e plugins/areal_config -e plugins/areal_devices -e kits/areal_worker "
            "-e plugins/areal_algorithms -e kits/areal_torch -e 'plugins/areal_local[engine]' -e '.[local]'",
        ),
        (
            "areal-vllm[engine]",
            "pip install -e kits/areal_worker -e 'kits/areal_serving[engine]' -e plugins/areal_algorithms "
            "-e plugins/areal_devices -e kits/areal_torch -e 'plugins/areal_vllm[engine]'",
        ),
        ("areal-toy[engine]", "pip install 'areal-toy[engine]'"),
    ],
)
def test_in_a_checkout_folders_are_installed_with_those_they_need(wanted: str, command: str) -> None:
    """No index has our packages, so whatever is missing is named; a package of others is installed by name."""
    assert pip_install(wanted) == command


def test_what_is_installed_is_not_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one asked for is all that is left, with the extra."""
    monkeypatch.setattr(install, "installed_version", lambda distribution: "0.1.0")
    monkeypatch.chdir(CHECKOUT)

    assert pip_install("areal-vllm[engine]") == "pip install -e 'plugins/areal_vllm[engine]'"


def test_from_another_folder_the_whole_path_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command can be copied wherever the shell is."""
    monkeypatch.chdir(tmp_path)

    assert pip_install("areal-fsdp") == f"pip install -e {CHECKOUT}/plugins/areal_fsdp"


def test_without_a_checkout_the_name_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core installed from a wheel lies in no repository."""
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)

    assert pip_install("areal-vllm[engine]") == "pip install 'areal-vllm[engine]'"
    assert pip_install("areal-core", options="-U") == "pip install -U areal-core"


def test_an_update_of_a_checkout_is_a_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder installed as it stands gets newer only with its repository."""
    monkeypatch.chdir(CHECKOUT)

    assert pip_install("areal-core", options="-U") == "git pull, then pip install -e ."


@pytest.mark.parametrize("wanted", HINTED)
def test_every_hint_names_a_distribution_and_extras_there_are(wanted: str) -> None:
    """What the code tells people to install can be installed."""
    requirement = Requirement(wanted)
    folder = install._folder(requirement.name)

    assert folder is not None, f"{wanted} is of no folder here"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert requirement.extras <= set(project.get("optional-dependencies", {}))


def test_every_hint_of_ours_comes_from_one_function() -> None:
    """No other line of the code spells a command that installs one of our distributions."""
    literal = re.compile(r"pip install[^\n\"]*(areal-[a-z]+)")
    spelt = {
        (path.name, match[1])
        for path in SOURCES
        if "/src/" in str(path) and path.name != "install.py"
        for match in literal.finditer(path.read_text())
    }

    assert spelt == set()


def test_what_proves_the_suite_is_neither_listed_nor_recommended(site: Path) -> None:
    """It is described by its name, for the suite; nobody is sent to it for an ability it has."""
    for name, distribution in (("witness", PROOF), ("plain", "areal-plain")):
        claims = "{'a.rare.ability': full()}" if name == "witness" else "{}"
        write_distribution(
            site,
            distribution,
            entry_points={"areal.train": {name: f"m_{name}:MANIFEST"}},
            modules={f"m_{name}": manifest_source("train", name, claims=claims)},
        )
    registry = Registry()

    assert registry.describe("train", "witness").name == "witness"
    assert [row.name for row in inventory(registry, name="witness")] == ["witness"]
    assert "witness" not in {row.name for row in inventory(registry)}
    with pytest.raises(CapabilityError) as caught:
        registry.require("train", "plain", "a.rare.ability")
    assert caught.value.fix == "no installed train backend can"
