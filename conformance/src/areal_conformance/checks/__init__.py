"""Every check of the suite, by area.

Knows: which modules hold checks.
Does not know: which of them a target must pass (`session.applicable`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from types import ModuleType

from areal_conformance.check import CHECKED_ROLES, STATIC, Check
from areal_core.contract.version import ROLES


@functools.cache
def all_checks() -> Mapping[str, Check]:
    """Return every check by id, sorted. Imports the check modules; none of them imports torch at the top.

    Raises:
        ValueError: two checks share an id, or one has an id of a role that nothing plays.
    """
    found = collect(sys.modules[__name__])
    strange = [key for key, check in found.items() if check.role not in (STATIC, *CHECKED_ROLES)]
    if strange:
        raise ValueError(f"no role of {', '.join((STATIC, *CHECKED_ROLES))}: {', '.join(strange)}")
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
        for value in vars(importlib.import_module(module.name)).values():
            if not isinstance(value, Check) or value.body.__module__ != module.name:
                continue
            if found.setdefault(value.id, value) is not value:
                raise ValueError(f"check id {value.id} is used twice, again in {module.name}")
    return dict(sorted(found.items()))


def checks_of(role: str) -> tuple[Check, ...]:
    """Return the checks of one role, the static ones with them where it is a role of plugins: by level, then id."""
    wanted = (STATIC, role) if role in ROLES else (role,)
    mine = [check for check in all_checks().values() if check.role in wanted]
    return tuple(sorted(mine, key=lambda check: (check.level, check.id)))
