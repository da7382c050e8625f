"""Overlays: names for the length of a `with` block, for tests and notebooks."""

from __future__ import annotations

import pytest

from areal_core.contract.errors import BackendNotFound, CapabilityError
from areal_core.plugins.claims import full
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry, default_registry


def make_one() -> str:
    """Return what the first factory builds."""
    return "one"


def make_two() -> str:
    """Return what the second factory builds."""
    return "two"


def test_an_overlay_is_there_inside_and_gone_outside() -> None:
    """Names, factories and listings come back as they were."""
    registry = Registry()
    before = registry.listings()

    with registry.overlay({("reward", "mine"): make_one}):
        inside = (registry.build("reward", "mine"), "mine" in registry.names("reward"))

    assert inside == ("one", True)
    assert before == registry.listings()
    with pytest.raises(BackendNotFound):
        registry.load("reward", "mine")


def test_an_overlay_is_restored_when_the_block_raises() -> None:
    """A failing test leaves nothing behind for the next."""
    registry = Registry()

    with pytest.raises(KeyError), registry.overlay({("reward", "mine"): make_one}):
        raise KeyError

    assert "mine" not in registry.names("reward")


def test_overlays_nest_and_the_inner_one_wins() -> None:
    """The inner overlay hides the outer one, which comes back."""
    registry = Registry()

    with registry.overlay({("reward", "mine"): make_one}):
        with registry.overlay({("reward", "mine"): make_two}):
            inner = registry.build("reward", "mine")
        outer = registry.build("reward", "mine")

    assert (inner, outer) == ("two", "one")


def test_an_overlay_replaces_an_installed_name() -> None:
    """A fake takes the place of the real one, whose metadata is not asked."""
    registry = Registry()
    origin = next(row.origin for row in registry.listings("transport") if row.name == "disk")

    with registry.overlay({("transport", "disk"): make_one}):
        inside = registry.build("transport", "disk")
        replaced = next(row.origin for row in registry.listings("transport") if row.name == "disk")

    assert (inside, replaced) == ("one", "overlay")
    assert origin == next(row.origin for row in registry.listings("transport") if row.name == "disk")


def test_a_bare_factory_claims_nothing_and_a_manifest_does() -> None:
    """Claims are never assumed, not even for a fake."""
    registry = Registry()
    manifest = Manifest(role="train", name="able", contract=(1, 0), factory="a:b", claims={"lora": full()})

    with registry.overlay({("train", "bare"): make_one, ("train", "able"): (manifest, make_two)}):
        assert full() == registry.require("train", "able", "lora")
        with pytest.raises(CapabilityError):
            registry.require("train", "bare", "lora")


def test_the_default_registry_is_one_per_process() -> None:
    """Everybody who asks gets the same, so that a user's file is added once."""
    assert default_registry() is default_registry()
