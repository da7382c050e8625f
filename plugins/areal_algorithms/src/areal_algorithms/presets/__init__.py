"""Published algorithms by name: which settings each is, as data beside this file. The extension `presets` of the core.

    algorithm: {preset: dapo}

Knows: name, paper, formula and keys of each, and which roles it cannot do without.
Does not know: how settings are merged (`areal_core.config.load`), or what they do.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from attrs import field, frozen

from areal_core.contract.errors import ConfigError, PlanError
from areal_core.plugins.structure import structure


@frozen(kw_only=True)
class Preset:
    """One published algorithm. `keys` are parts of a run's yaml, `needs` are roles, `formula` is LaTeX."""

    name: str
    summary: str
    paper: str
    arxiv: str
    formula: str
    keys: Mapping[str, Any]  # Any: a part of a run's yaml
    needs: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    notes: tuple[str, ...] = field(default=(), converter=tuple[str, ...])


@cache
def presets() -> tuple[Preset, ...]:
    """Return all of them, sorted by name."""
    found = (path for path in files(__name__).iterdir() if path.name.endswith(".yaml"))
    read = ({"name": path.name.removesuffix(".yaml"), **yaml.safe_load(path.read_text("utf-8"))} for path in found)
    return tuple(sorted((structure(Preset, each) for each in read), key=lambda preset: preset.name))


def preset(name: str) -> Preset:
    """Return one by name.

    Raises:
        ConfigError: there is none; lists those there are and suggests the nearest.
    """
    known = {each.name: each for each in presets()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"algorithm.preset {name!r} is unknown",
        why=f"presets are {', '.join(known)}",
        fix=f"did you mean {near[0]!r}?" if near else "areal algorithms",
    )


def keys(name: str) -> Mapping[str, Any]:  # Any: a part of a run's yaml
    """Return the settings a preset is; see `areal_core.plugins.extensions.Presets`."""
    return preset(name).keys


def check_roles(name: str, roles: frozenset[str]) -> None:
    """Refuse a run that lacks a role its preset cannot do without.

    Raises:
        ConfigError: there is no such preset.
        PlanError: names the section to add.
    """
    for role in preset(name).needs:
        if role not in roles:
            raise PlanError(
                f"algorithm.preset is {name} and there is no {role}",
                why=f"{name} is made of it: areal algorithms {name}",
                fix=f"add a section `{role}: {{backend: ...}}` with a backend as the actor's, or take another preset",
            )
