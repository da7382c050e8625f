"""What is held to the contract: a plugin found by name, with its manifest and its adapter.

Knows: how a name, a user's file or a mutant becomes a target, in this process or in a rank's.
Does not know: any check.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import Factory, field, frozen

from areal_conformance.adapter import Adapter
from areal_conformance.proof import proof
from areal_core.contract.errors import CapabilityError, PluginError
from areal_core.plugins.claims import Support, holds
from areal_core.plugins.devices import device_named
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry, default_registry


@frozen(kw_only=True)
class Locator:
    """A target as it travels to other processes: names, never objects.

    Example: Locator(role="train", name="fsdp", device="cpu", ranks=2)
    """

    role: str
    name: str
    device: str = "cpu"
    ranks: int = 1
    imports: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """The user's own files to register first."""
    mutant: str = ""
    """Name of a shipped mutant to put in the backend's place."""
    patience: float = 1.0
    """Multiplies the patience of the adapter: a machine that has other work too."""
    zoo: int = 0
    """Models of each family that are drawn (`zoo.sample`); 0 are as many as a backend can be asked in a short run."""


@frozen(kw_only=True)
class Target:
    """One thing under test. `registry` resolves its name; `parts` are the two sides of a pair."""

    locator: Locator
    registry: Registry
    adapter: Adapter
    manifest: Manifest | None = None
    origin: str = ""
    """Distribution and version, or the file it came from."""
    parts: Mapping[str, Target] = Factory(dict)

    @property
    def role(self) -> str:
        """Return the role it is checked in."""
        return self.locator.role

    @property
    def name(self) -> str:
        """Return its name within the role."""
        return self.locator.name

    @property
    def torch_type(self) -> str:
        """Return what torch calls the device it is checked on."""
        return device_named(self.registry, self.locator.device).torch_type

    def claimed(self, key: str) -> bool:
        """Tell whether a run on this device, with the adapter's options for it, may count on an ability.

        For a pair the key begins with the side: `train.packing`, `infer.pause.keep`.
        """
        if self.parts:
            side, _, rest = key.partition(".")
            return side in self.parts and self.parts[side].claimed(rest)
        claim = None if self.manifest is None else self.manifest.claims.get(key)
        if claim is None or not claim.claimed:
            return False
        if claim.support is not Support.WHEN or not claim.condition:
            return True
        options = {**self.adapter.options.get("", {}), **self.adapter.options.get(key, {})}
        facts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        return holds(claim.condition, {**facts, "device": self.locator.device})

    def varied(self, options: Mapping[str, Any]) -> Target:
        """Return the target with more options for every check."""
        every = {**self.adapter.options, "": {**self.adapter.options.get("", {}), **options}}
        return attrs.evolve(self, adapter=attrs.evolve(self.adapter, options=every))

    def options(self, *claims: str) -> dict[str, Any]:
        """Return the options that switch the given abilities on, and those of every check."""
        merged = dict(self.adapter.options.get("", {}))
        for claim in claims:
            merged.update(self.adapter.options.get(claim, {}))
        return merged


def locate(locator: Locator) -> Target:
    """Find what a locator names.

    Raises:
        PluginError: no such plugin, mutant or device; says which there are.
    """
    if locator.mutant:
        return _patient(proof().mutant_named(locator.mutant).target(locator))
    registry = Registry()
    for path in locator.imports:
        registry.add_file(path)
        default_registry().add_file(path)  # where engines look for the devices that it brings
    if locator.role == "pair":
        return _pair(locator, registry)
    if locator.role == "device":
        locator = attrs.evolve(locator, device=locator.name)
    manifest = registry.describe(locator.role, locator.name)
    if locator.device not in manifest.devices:
        raise CapabilityError(
            f"{locator.role} backend {locator.name!r} does not run on {locator.device!r}",
            why=f"its manifest names {', '.join(manifest.devices)}",
        )
    origin = next(listing.origin for listing in registry.listings(locator.role) if listing.name == locator.name)
    return _patient(
        Target(
            locator=locator, registry=registry, adapter=adapter_of(manifest, origin), manifest=manifest, origin=origin
        )
    )


def adapter_of(manifest: Manifest, origin: str) -> Adapter:
    """Return the adapter a manifest names, or the default one.

    Raises:
        PluginError: it cannot be imported, or is no Adapter.
    """
    if manifest.conformance is None:
        return Adapter()
    module, _, name = manifest.conformance.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as exc:
        raise PluginError(
            f"the conformance adapter {manifest.conformance!r} of {origin} cannot be imported",
            why=f"{type(exc).__name__}: {exc}",
            fix="fix it, or remove `conformance` from the manifest to be checked with the default adapter",
        ) from exc
    if not isinstance(found, Adapter):
        raise PluginError(
            f"the conformance adapter {manifest.conformance!r} of {origin} is a {type(found).__name__}",
            why="it must be an areal_conformance.adapter.Adapter",
        )
    return found


def _patient(target: Target) -> Target:
    """Return the target with the patience of its adapter multiplied by that of the run."""
    factor = target.locator.patience
    if factor == 1.0:
        return target
    adapter = attrs.evolve(target.adapter, patience=target.adapter.patience * factor)
    return attrs.evolve(target, adapter=adapter)


def _pair(locator: Locator, registry: Registry) -> Target:
    train, separator, infer = locator.name.partition("+")
    if not separator:
        raise PluginError(f"pair {locator.name!r} names one backend", fix="write it as train+infer: fsdp+vllm")
    sides = {
        role: locate(attrs.evolve(locator, role=role, name=name, ranks=1))
        for role, name in (("train", train), ("infer", infer))
    }
    origin = " + ".join(side.origin for side in sides.values())
    patience = max(side.adapter.patience for side in sides.values())
    return Target(locator=locator, registry=registry, adapter=Adapter(patience=patience), origin=origin, parts=sides)
