"""`areal conformance list`: which checks there are.

Knows: a table and its JSON, both made from the inventory, so that no check is imported.
Does not know: what a check does.
"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import cattrs
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from areal_conformance.check import CHECKED_ROLES, STATIC, Level
from areal_conformance.checks import AREAS, extra_fix, missing
from areal_conformance.inventory import Pinned, read_inventory
from areal_core.contract.errors import ConfigError

MAX_WIDTH = 240
_SHOWN = ["title", "role", "level", "tier", "law", "spec", "requires", "unless", "ranks", "since", "provisional"]


def show_list(
    *, role: str = "", level: int | None = None, json: Annotated[bool, Parameter(negative=())] = False
) -> int:
    """List the checks.

    Args:
        role: Only this role: static, train, infer, pair, scheduler, transport, workflow, device.
        level: Only this level, 0 to 5.
        json: Print JSON instead of a table.
    """
    if role and role not in (STATIC, *CHECKED_ROLES):
        raise ConfigError(f"no checks for the role {role!r}", why=f"roles are {', '.join((STATIC, *CHECKED_ROLES))}")
    if level is not None and level not in tuple(Level):
        raise ConfigError(f"there is no level {level}", why="levels are 0 to 5")
    listed = read_inventory().checks.items()
    found = [(key, one) for key, one in listed if role in ("", one.role) and level in (None, one.level)]
    if json:
        print(jsonlib.dumps([described(key, one) for key, one in found], indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "level", "law", "tier", "claim"):
        table.add_column(column, no_wrap=column == "check", overflow="fold")
    for key, one in found:
        table.add_row(key, str(one.level), str(one.law), str(one.tier), one.title)
    console = Console()
    if not console.is_terminal:
        console = Console(width=MAX_WIDTH)  # one line a check, for grep
    console.print(table)
    console.print(f"\n{len(found)} checks. Everything about one: areal conformance explain CHECK", highlight=False)
    absent = [area for area in AREAS if role in ("", area) and missing(area)]
    if absent:
        lacking = ", ".join(missing(absent[0]))
        console.print(f"Those of {', '.join(absent)} cannot be run here without {lacking}: {extra_fix()}", markup=False)
    return 0


def described(key: str, one: Pinned) -> dict[str, Any]:
    """Return what is public of a check, as JSON. Any: several types."""
    told = cattrs.unstructure(one)
    return {"id": key, **{name: told[name] for name in _SHOWN}}
