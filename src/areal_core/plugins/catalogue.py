"""The official names, so that a missing plugin can be answered with the one command that brings it.

Knows: role -> name -> distribution, and command -> distribution, of the plugins of this project (`catalogue.toml`).
Does not know: what is installed, or anything of third parties.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

from areal_core.plugins.install import pip_install

CORE, LOCAL = "areal-core", "areal-local"

OWN = frozenset({CORE, LOCAL, "areal-torch", "areal-serving", "areal-devices", "areal-tasks", "areal-report"}) | {
    *("areal-episodes", "areal-algorithms", "areal-config")
}
"""What a run is made of beside its backends: never left out by AREAL_PLUGINS, and what one lacks is a choice."""

PROOF = "areal-conformance-proof"
"""Its engines prove the conformance suite. They can be named, and are neither listed nor recommended."""

_BROUGHT = tomllib.loads((resources.files("areal_core.plugins") / "catalogue.toml").read_text())

COMMANDS: Mapping[str, str] = MappingProxyType(
    {command: package for package, brings in _BROUGHT.items() for command in brings.pop("commands", ())}
)
"""Command of `areal` that is not the core's own -> the distribution that adds it."""

OFFICIAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        role: {name: package for package, brings in _BROUGHT.items() for name in brings.get(role, ())}
        for role in dict.fromkeys(role for brings in _BROUGHT.values() for role in brings)
    }
)

PLANNED: Mapping[str, tuple[str, ...]] = MappingProxyType({"scheduler": ("slurm",)})
"""Role -> names that are written of and do not exist yet."""


def official_names(role: str) -> tuple[str, ...]:
    """Return the names this project has for a role, in the order of the catalogue."""
    return tuple(OFFICIAL.get(role, {}))


def pip_command(role: str, name: str) -> str:
    """Return the command that brings an official name, and an empty string for any other."""
    distribution = OFFICIAL.get(role, {}).get(name)
    if distribution == LOCAL:
        distribution = f"{CORE}[local]"
    return pip_install(distribution) if distribution else ""
