"""Which version of an adapter a request gets, and when an old one may go."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.contract.errors import CapabilityError, VersionRegressed
from areal_serving.adapters import Adapters, ServedAdapter


def load(adapters: Adapters, name: str, version: int) -> ServedAdapter:
    adapter = adapters.admit(name, Path("/adapters", name), version)
    adapters.loaded(adapter)
    return adapter


def test_later_requests_get_the_newest() -> None:
    """Each version has a name of its own in the server."""
    adapters = Adapters(2)
    old = load(adapters, "a", 1)
    new = load(adapters, "a", 2)

    assert adapters.find("a") is new
    assert old.served != new.served


def test_a_version_in_use_stays() -> None:
    """A request keeps what it began with; afterwards the version goes, once."""
    adapters = Adapters(2)
    old = load(adapters, "a", 1)
    adapters.begin(old)
    load(adapters, "a", 2)

    assert adapters.unused() == []
    assert {adapter.version for adapter in adapters} == {1, 2}

    adapters.end(old)
    assert adapters.unused() == [old]
    assert adapters.unused() == []


@pytest.mark.parametrize("version", [2, 1])
def test_no_version_comes_back(version: int) -> None:
    """Neither an older one nor the same again."""
    adapters = Adapters(2)
    load(adapters, "a", 2)

    with pytest.raises(VersionRegressed, match="'a'"):
        adapters.admit("a", Path("/x"), version)


def test_places_are_counted_by_name() -> None:
    """A new version needs no further place, a new name does."""
    adapters = Adapters(1)
    load(adapters, "a", 1)
    load(adapters, "a", 2)

    with pytest.raises(CapabilityError, match="no place"):
        adapters.admit("b", Path("/x"), 1)


def test_what_was_never_loaded_is_named() -> None:
    """The error says what is."""
    adapters = Adapters(2)
    load(adapters, "a", 1)

    with pytest.raises(CapabilityError) as caught:
        adapters.find("b")
    assert "'b'" in caught.value.what
    assert "a" in caught.value.why


def test_an_unloaded_name_is_gone() -> None:
    """And may be loaded again under any version."""
    adapters = Adapters(1)
    load(adapters, "a", 5)
    adapters.forget("a")
    adapters.forget("a")

    with pytest.raises(CapabilityError):
        adapters.find("a")
    assert load(adapters, "a", 1).version == 1
