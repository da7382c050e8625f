"""The environments that are there, and the recipes there are.

Knows: how to look through the folder of all environments.
Does not know: how they are shown.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from attrs import frozen

from areal_core.contract.errors import CapabilityError, PluginError
from areal_core.plugins.registry import Registry
from areal_serving.environments import lookup, places
from areal_serving.environments.recipe import Recipe, read_recipe


class State(StrEnum):
    """How an environment is."""

    OK = "ok"
    OUTDATED = "out of date"
    """Usable, but not what would be made today."""
    HALF_MADE = "half made"
    """A build was killed; the next one begins anew."""


@frozen(kw_only=True)
class Found:
    """One environment. `why` says why it is out of date."""

    name: str
    device: str
    folder: Path
    state: State
    engine_version: str = ""
    why: str = ""


def recipe_for(registry: Registry, name: str, device: str) -> Recipe:
    """Return the recipe of an inference backend.

    Raises:
        CapabilityError: the backend runs in the trainer's environment and needs none of its own.
        PluginError: as `Registry.describe` and `read_recipe`.
    """
    manifest = registry.describe("infer", name)
    if manifest.environment is None:
        able = [other for other in registry.names("infer") if _has_environment(registry, other)]
        raise CapabilityError(
            f"infer backend {name!r} has no environment of its own",
            why="it runs in the trainer's",
            fix=f"backends that have one: {', '.join(able) or 'none is installed'}",
        )
    return read_recipe(manifest, device)


def environments(registry: Registry, within: Path | None = None) -> list[Found]:
    """Return every environment in a folder, the user's own if None, sorted by name."""
    root = places.root() if within is None else within
    folders = sorted(path for path in root.glob("*") if path.is_dir() and not path.name.startswith("."))
    found = (_found(registry, folder) for folder in folders)
    return [each for each in found if each is not None]


def _found(registry: Registry, folder: Path) -> Found | None:
    name, device = places.split_name(folder.name, registry.names("device"))
    if device is None or not ((folder / "pyvenv.cfg").is_file() or places.read_marker(folder)):
        return None
    marker = places.read_marker(folder)
    if marker is None or not places.is_whole(folder):
        return Found(name=name, device=device, folder=folder, state=State.HALF_MADE)
    try:
        why = lookup.outdated(recipe_for(registry, name, device), marker)
    except PluginError as exc:
        why = exc.what
    return Found(
        name=name,
        device=device,
        folder=folder,
        state=State.OUTDATED if why else State.OK,
        engine_version=marker.engine_version,
        why=why,
    )


def _has_environment(registry: Registry, name: str) -> bool:
    try:
        return registry.describe("infer", name).environment is not None
    except PluginError:
        return False
