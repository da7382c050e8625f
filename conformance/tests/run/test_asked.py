"""From what was asked to a target: roles, pairs, mutants, and the ledger that comes with a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from areal_conformance.probes.distributions import write_distribution
from areal_conformance.run.asked import Asked, locator_of
from areal_conformance.run.plan import ledger_path
from areal_conformance.target import Locator, locate
from areal_core.contract.errors import BackendNotFound, ConfigError


def test_a_name_of_one_role_needs_no_role() -> None:
    """The scheduler of the core is the only plugin called so."""
    assert locator_of(Asked(backend="local")) == Locator(role="scheduler", name="local")


def test_a_name_of_two_roles_needs_one() -> None:
    """Both are told."""
    with pytest.raises(ConfigError) as caught:
        locator_of(Asked(backend="second"))
    assert "train, infer" in caught.value.why
    assert caught.value.fix == "--backend second --role train"
    assert locator_of(Asked(backend="second", role="infer")).role == "infer"


def test_the_size_of_the_zoo_goes_along() -> None:
    """Also to mutants and ranks, which are told names only; a number below 0 draws nothing."""
    assert locator_of(Asked(backend="second", role="train", zoo=7)).zoo == 7
    assert locator_of(Asked(mutant="UsualTheta", zoo=7)).zoo == 7
    with pytest.raises(ConfigError, match="--zoo -1"):
        locator_of(Asked(backend="second", role="train", zoo=-1))


def test_an_unknown_name_lists_what_is_installed() -> None:
    """By role."""
    with pytest.raises(BackendNotFound, match="scheduler: local"):
        locator_of(Asked(backend="no_such_thing"))


def test_a_pair_given_as_a_backend_is_pointed_out() -> None:
    """With the command that works."""
    with pytest.raises(ConfigError, match="--pair a\\+b"):
        locator_of(Asked(backend="a+b"))


@pytest.mark.parametrize("given", [{}, {"backend": "a", "pair": "a+b"}, {"backend": "a", "mutant": "M"}])
def test_exactly_one_target_is_named(given: dict[str, Any]) -> None:
    """None, or several, is bad input."""
    with pytest.raises(ConfigError, match="--backend NAME, --pair TRAIN"):
        locator_of(Asked(**given))


def test_a_role_without_checks_is_refused() -> None:
    """A data set has no contract of behaviour."""
    with pytest.raises(ConfigError, match="no checks for the role 'dataset'"):
        locator_of(Asked(backend="spell", role="dataset"))


def test_a_mutant_brings_its_backend_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it needs nothing else on the command line."""
    import areal_proof.mutants as mutants

    found = mutants.Mutant(name="Torn", of="train/second", defect="s", killers=(), ranks=2, breaks=lambda whole: whole)
    monkeypatch.setattr(mutants, "mutant_named", lambda name: found)

    expected = Locator(role="train", name="second", ranks=2, mutant="Torn")
    assert locator_of(Asked(mutant="Torn")) == expected
    assert locator_of(Asked(mutant="Torn", ranks=4)).ranks == 4


def test_files_travel_with_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads them may stand elsewhere."""
    monkeypatch.chdir(tmp_path)

    assert Asked(backend="x", imports=("mine.py",)).imports == (str(tmp_path / "mine.py"),)


MANIFEST = """
from areal_core.plugins.manifest import Manifest
MANIFEST = Manifest(role="transport", name="mail", contract=(1, 0), factory="areal_mail_toy.engine:Mail")
"""


def test_the_ledger_of_a_plugin_lies_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the folder one happens to stand in; the package is not imported to find it."""
    site = tmp_path / "site"
    site.mkdir()
    modules = {"areal_mail_toy.manifest": MANIFEST}
    entry = {"areal.transport": {"mail": "areal_mail_toy.manifest:MANIFEST"}}
    write_distribution(site, "areal-mail-toy", entry_points=entry, modules=modules)
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "conformance.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    target = locate(Locator(role="transport", name="mail"))

    assert ledger_path(target) is None
    own = site / "areal_mail_toy" / "conformance.toml"
    own.write_text("", encoding="utf-8")
    assert ledger_path(target) == own


def test_a_target_without_a_manifest_has_no_ledger(offer: Any) -> None:
    """There is no package for it to lie in."""
    target = offer().locate(Locator(role="workflow", name="toy"))

    assert ledger_path(target) is None
