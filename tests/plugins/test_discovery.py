"""Discovery reads metadata, imports nothing, and survives other people's damage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core.contract.errors import BackendNotFound, PluginError
from areal_core.plugins.discovery import discover
from areal_core.plugins.registry import Registry


def write_train(site: Path, name: str, source: str | None = None, version: str = "1.0") -> None:
    """Write a distribution areal-NAME with one train backend NAME."""
    module = f"areal_{name}"
    write_distribution(
        site,
        f"areal-{name}",
        version=version,
        entry_points={"areal.train": {name: f"{module}.manifest:MANIFEST"}},
        modules={f"{module}.manifest": manifest_source("train", name) if source is None else source},
    )


def test_a_listing_imports_no_plugin(site: Path) -> None:
    """A plugin that raises when imported is listed all the same, because it is not imported."""
    write_train(site, "explosive", "raise RuntimeError('boom')")
    registry = Registry()

    names = registry.names("train")

    assert "explosive" in names
    assert not [module for module in sys.modules if module.startswith("areal_explosive")]


def test_the_environment_is_read_once_per_registry(site: Path) -> None:
    """What is installed later is seen by a new registry, not by the old one."""
    old = Registry()
    before = old.names("train")
    write_train(site, "late")

    assert before == old.names("train")
    assert "late" in Registry().names("train")


def test_an_unknown_role_is_refused_with_the_near_one() -> None:
    """A role that does not exist is an error, not an empty list."""
    with pytest.raises(PluginError) as caught:
        Registry().names("trian")

    assert caught.value.fix == "did you mean 'train'?"


def test_unreadable_metadata_hides_only_itself(site: Path) -> None:
    """A distribution whose entry points cannot be parsed is remembered, and the others are found."""
    write_train(site, "fine")
    write_distribution(site, "areal-torn")
    (site / "areal_torn-1.0.dist-info" / "entry_points.txt").write_text("[areal.train]\nno equals sign\n")

    found = discover({})

    assert ("train", "fine") in found.roles
    assert [(str(site / "areal_torn-1.0.dist-info"))] == [where for where, _ in found.unreadable]


def test_the_first_of_two_copies_of_one_distribution_counts(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale copy further down sys.path is no duplicate; imports would not see it either."""
    write_train(site, "twin", version="2.0")
    older = tmp_path / "older"
    older.mkdir()
    write_train(older, "twin", version="1.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])

    entries = discover({}).roles["train", "twin"]

    assert [entry.version for entry in entries] == ["2.0"]


@pytest.mark.parametrize(
    ("value", "found"),
    [("", set()), ("one", {"one"}), ("areal-two", {"two"}), (" one , two ", {"one", "two"}), (None, {"one", "two"})],
)
def test_areal_plugins_narrows_to_names_or_distributions(site: Path, value: str | None, found: set[str]) -> None:
    """Set but empty admits only the core's own; a word admits a plugin by its name or its distribution's."""
    write_train(site, "one")
    write_train(site, "two")

    registry = Registry(environ={} if value is None else {"AREAL_PLUGINS": value})

    assert found == set(registry.names("train")) & {"one", "two"}
    assert "single_turn" in registry.names("workflow")


def test_a_name_left_out_says_who_left_it_out(site: Path) -> None:
    """The error for a narrowed name points at the variable, not at pip."""
    write_train(site, "one")

    with pytest.raises(BackendNotFound) as caught:
        Registry(environ={"AREAL_PLUGINS": ""}).describe("train", "one")

    assert caught.value.why == "areal-one 1.0 has it, but AREAL_PLUGINS leaves that out"
    assert caught.value.fix == "add one to AREAL_PLUGINS, or unset it"


def test_a_word_that_fits_nothing_is_remembered() -> None:
    """A misspelt word in AREAL_PLUGINS is kept for doctor."""
    assert discover({"AREAL_PLUGINS": "fsdq"}).unmatched == ("fsdq",)
