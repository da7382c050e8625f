"""Describing a plugin: the handshake, and whose fault it is when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core import __version__
from areal_core.contract.errors import BackendBroken, BackendNotFound, ContractMismatch, DuplicateName, ManifestError
from areal_core.contract.version import CONTRACT
from areal_core.plugins import describe, install
from areal_core.plugins.registry import Registry

VERSION = "9.1"
NEWER_CORE = "pip install -U areal-core, or a release of areal-toy for train contract 1.2"


def plugin(
    site: Path, source: str, name: str = "toy", distribution: str = "areal-toy", module: str = "areal_toy"
) -> None:
    """Write a distribution with one train backend whose manifest module has the given source."""
    entry_points = {"areal.train": {name: f"{module}.manifest:MANIFEST"}}
    modules = {f"{module}.manifest": source, f"{module}.engine": "raise RuntimeError('the engine was imported')"}
    write_distribution(site, distribution, version=VERSION, entry_points=entry_points, modules=modules)


def test_describe_imports_the_manifest_and_not_the_engine(site: Path) -> None:
    """The second stage costs one light module."""
    plugin(site, manifest_source("train", "toy", summary="a toy"))

    manifest = Registry().describe("train", "toy")

    assert manifest.summary == "a toy"
    assert "areal_toy.manifest" in sys.modules
    assert "areal_toy.engine" not in sys.modules


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_a_plugin_that_raises_is_named_with_its_distribution(site: Path, statement: str, said: str) -> None:
    """Whatever a plugin raises becomes an error that names it, where it comes from, and the exception."""
    plugin(site, f"x = 1\n{statement}\n")

    with pytest.raises(BackendBroken) as caught:
        Registry().describe("train", "toy")

    assert caught.value.what == "train backend 'toy' of areal-toy 9.1 cannot be imported"
    assert f"{said} ({site}/areal_toy/manifest.py:2)" == caught.value.why


def test_a_broken_plugin_breaks_no_other(site: Path) -> None:
    """Other names are described as if the broken one were not there."""
    plugin(site, "raise ValueError")
    plugin(site, manifest_source("train", "good"), name="good", distribution="areal-good", module="areal_good")
    registry = Registry()

    assert registry.describe("train", "good").name == "good"
    assert {"good", "toy"} <= set(registry.names("train"))


@pytest.mark.parametrize(
    ("ours", "theirs", "why", "fix"),
    [
        (
            (1, 2),
            (1, 10),
            "1.2 and older minors of 1",
            NEWER_CORE,
        ),
        (
            (1, 2),
            (2, 0),
            "1.2 and older minors of 1",
            NEWER_CORE,
        ),
        ((2, 0), (1, 4), "2.0", "pip install -U areal-toy: a release for train contract 2.0 is needed"),
    ],
)
def test_a_contract_we_do_not_speak_is_refused_with_the_pip_command(
    site: Path, monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int], why: str, fix: str
) -> None:
    """Whoever is older is the one to upgrade."""
    monkeypatch.setattr(install, "CHECKOUT", site)
    spoken = {**CONTRACT, "train": ours}
    monkeypatch.setattr(describe, "CONTRACT", spoken)
    monkeypatch.setattr("areal_core.contract.version.CONTRACT", spoken)
    plugin(site, manifest_source("train", "toy", contract=theirs))

    with pytest.raises(ContractMismatch) as caught:
        Registry().describe("train", "toy")

    what = f"areal-toy 9.1 speaks train contract {theirs[0]}.{theirs[1]}"
    why = f"areal-core {__version__} speaks train contract {why}"
    assert (what, why, fix) == (caught.value.what, caught.value.why, caught.value.fix)


def test_an_older_minor_is_accepted(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minor only adds, so the plugin of yesterday still fits."""
    monkeypatch.setattr("areal_core.contract.version.CONTRACT", {**CONTRACT, "train": (1, 3)})
    plugin(site, manifest_source("train", "toy", contract=(1, 1)))

    assert Registry().describe("train", "toy").contract == (1, 1)


@pytest.mark.parametrize(
    "source",
    [
        "MANIFEST = {'role': 'train'}",
        manifest_source("train", "other"),
        manifest_source("infer", "toy"),
        manifest_source("train", "toy", contract="1.0"),
        manifest_source("train", "toy", contract=(1, 0, 0)),
        manifest_source("train", "toy", requires=[5]),
        manifest_source("train", "toy", claims="{'lora': True}"),
        manifest_source("train", "toy", claims="['lora']"),
        manifest_source("train", "toy", claims="{'lora': when('if it rains', 'wet')}"),
        manifest_source("train", "toy").replace("'train'", "'trian'"),
        manifest_source("train", "toy", factory="no_colon"),
    ],
)
def test_a_malformed_manifest_is_refused(site: Path, source: str) -> None:
    """Wrong types, names, roles, claims and conditions are errors before anything relies on them."""
    plugin(site, source)

    with pytest.raises(ManifestError) as caught:
        Registry().describe("train", "toy")

    assert caught.value.what.startswith("train backend 'toy' of areal-toy 9.1 ")


def test_two_distributions_with_one_name_are_both_named(site: Path) -> None:
    """The clash is an error when the name is used, and no error while listing."""
    plugin(site, manifest_source("train", "toy"))
    plugin(site, manifest_source("train", "toy"), distribution="toymakers", module="toymakers_toy")
    registry = Registry()

    with pytest.raises(DuplicateName) as caught:
        registry.describe("train", "toy")

    assert registry.names("train").count("toy") == 1
    assert caught.value.what == "train backend 'toy' is registered twice"
    assert {"areal-toy 9.1", "toymakers 9.1"} == set(caught.value.why.removeprefix("by ").split(" and by "))


def test_a_failure_is_remembered_and_not_repeated(site: Path) -> None:
    """Asking twice gives the same error without running the module twice."""
    plugin(site, "import os\nos.mkdir(__file__ + '.ran')\nraise ValueError\n")
    registry = Registry()
    with pytest.raises(BackendBroken):
        registry.describe("train", "toy")

    with pytest.raises(BackendBroken, match="ValueError"):  # a second run would raise FileExistsError
        registry.describe("train", "toy")


@pytest.mark.parametrize(
    ("role", "name", "what", "fix"),
    [
        ("train", "fsdpp", "no train backend named 'fsdpp' is installed", "did you mean 'fsdp'?"),
        ("scheduler", "slurm", "no scheduler named 'slurm' is installed", "areal backends --role scheduler"),
        ("train", "zzz", "no train backend named 'zzz' is installed", "areal backends --role train"),
        ("scheduler", "lcoal", "no scheduler named 'lcoal' is installed", "did you mean 'local'?"),
        ("reward", "exact", "no reward named 'exact' is installed", "did you mean 'exact_match'?"),
    ],
)
def test_an_unknown_name_gets_the_near_one_and_the_pip_command(role: str, name: str, what: str, fix: str) -> None:
    """An installed near name is suggested; an official one comes with its command; another with the listing."""
    with pytest.raises(BackendNotFound) as caught:
        Registry(environ={}).describe(role, name)

    assert (what, fix) == (caught.value.what, caught.value.fix)
    if role == "train":
        assert caught.value.why.startswith("installed: ") and "areal-core" not in caught.value.why


@pytest.mark.parametrize("name", ["slurm"])
def test_a_name_that_is_only_planned_is_offered_by_no_command(name: str) -> None:
    """Nobody is sent to a package index for what does not exist."""
    with pytest.raises(BackendNotFound) as caught:
        Registry(environ={}).describe("scheduler", name)

    assert caught.value.why.startswith("it does not exist yet; installed: local (areal-local ")
    assert "pip" not in caught.value.fix


def test_the_message_of_an_unknown_name_reads_as_documented(site: Path) -> None:
    """What, why and fix in three lines, with the code."""
    plugin(site, manifest_source("train", "toy"))
    registry = Registry(environ={"AREAL_PLUGINS": "areal-toy"})

    with pytest.raises(BackendNotFound) as caught:
        registry.describe("train", "toyy")

    assert (
        str(caught.value) == "no train backend named 'toyy' is installed [AREAL-E101]\n"
        "  why: installed: toy (areal-toy 9.1)\n"
        "  fix: did you mean 'toy'?"
    )
