"""Every check of the suite, by role: a package each, imported when its checks are asked for.

Checks of engines, pairs, transports and workflows make models and tensors, those of endpoints and renderers tokenizers
and trajectories, so their packages import torch; where the
extra that brings it is not installed those packages are left out, and `missing` says what they lack.

Knows: which packages hold checks, and what each needs.
Does not know: which of them a target must pass (`session.applicable`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType

from areal_conformance.check import CHECKED_ROLES, STATIC, Check
from areal_core.contract.version import ROLES
from areal_core.plugins.install import pip_install

AREAS = (STATIC, *CHECKED_ROLES)
LIGHT = (STATIC, "scheduler")
"""Whose checks carry no tensors."""
LIBRARIES = ("torch", "transformers", "tensordict", "areal_torch")
"""What `areal-conformance[engine]` brings: oracles, tiny models and tensors to send are made of them."""


def missing(area: str, found: Callable[[str], object] = find_spec) -> tuple[str, ...]:
    """Return what the checks of a role import and is not installed."""
    return () if area in LIGHT else tuple(name for name in LIBRARIES if not found(name))


def extra_fix() -> str:
    """Return the command that brings what is missing."""
    return pip_install("areal-conformance[engine]")


@functools.cache
def all_checks() -> Mapping[str, Check]:
    """Return every check by id, sorted, without those of roles that something is `missing` for."""
    return dict(sorted((key, check) for area in AREAS for key, check in checks_in(area).items()))


@functools.cache
def checks_in(area: str) -> Mapping[str, Check]:
    """Return the checks of one role, or the static ones, by id, sorted; none where something is `missing`.

    Raises:
        ValueError: two checks share an id, or one has the id of another role.
    """
    if missing(area):
        return {}
    found = collect(importlib.import_module(f"{__name__}.{area}"))
    strange = [key for key, check in found.items() if check.role != area]
    if strange:
        raise ValueError(f"among the checks of {area} are {', '.join(strange)}")
    return found


def collect(package: ModuleType) -> dict[str, Check]:
    """Return the checks that the modules of a package define, by id, sorted. Imports them.

    Raises:
        ValueError: two checks share an id.
    """
    found: dict[str, Check] = {}
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}."):
        if module.ispkg:
            continue
        for value in _made(importlib.import_module(module.name)):
            if found.setdefault(value.id, value) is not value:
                raise ValueError(f"check id {value.id} is used twice, again in {module.name}")
    return dict(sorted(found.items()))


def _made(module: ModuleType) -> list[Check]:
    """Return the checks and the members of families that a module itself makes."""
    values = [one for value in vars(module).values() for one in (value if isinstance(value, tuple) else (value,))]
    return [one for one in values if isinstance(one, Check) and one.body.__module__ == module.__name__]


def checks_of(role: str) -> tuple[Check, ...]:
    """Return the checks of one role, the static ones with them where it is a role of plugins: by level, then id."""
    wanted = (STATIC, role) if role in ROLES else (role,)
    mine = [check for area in wanted for check in checks_in(area).values()]
    return tuple(sorted(mine, key=lambda check: (check.level, check.id)))
