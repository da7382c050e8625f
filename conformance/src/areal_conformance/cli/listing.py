"""`areal conformance list`: which checks there are.

Knows: a table and its JSON.
Does not know: what a check does. Imports no engine.
"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from areal_conformance.check import CHECKED_ROLES, STATIC, Check, Level
from areal_conformance.checks import all_checks
from areal_core.contract.errors import ConfigError

MAX_WIDTH = 240


def show_list(
    *, role: str = "", level: int | None = None, json: Annotated[bool, Parameter(negative=())] = False
) -> int:
    """List the checks.

    Args:
        role: Only this role: static, train, infer, pair, scheduler, transport, workflow.
        level: Only this level, 0 to 5.
        json: Print JSON instead of a table.
    """
    if role and role not in (STATIC, *CHECKED_ROLES):
        raise ConfigError(f"no checks for the role {role!r}", why=f"roles are {', '.join((STATIC, *CHECKED_ROLES))}")
    if level is not None and level not in tuple(Level):
        raise ConfigError(f"there is no level {level}", why="levels are 0 to 5")
    found = [c for c in all_checks().values() if role in ("", c.role) and level in (None, int(c.level))]
    if json:
        print(jsonlib.dumps([described(check) for check in found], indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "level", "law", "tier", "claim"):
        table.add_column(column, no_wrap=column == "check", overflow="fold")
    for check in found:
        table.add_row(check.id, str(int(check.level)), str(check.law), str(check.tier), check.title)
    console = Console()
    if not console.is_terminal:
        console = Console(width=MAX_WIDTH)  # one line a check, for grep
    console.print(table)
    console.print(f"\n{len(found)} checks. Everything about one: areal conformance explain CHECK", highlight=False)
    return 0


def described(check: Check) -> dict[str, Any]:
    """Return what is public of a check, as JSON. Any: several types."""
    return {
        "id": check.id,
        "title": check.title,
        "role": check.role,
        "level": int(check.level),
        "tier": str(check.tier),
        "law": check.law,
        "spec": check.spec,
        "requires": list(check.requires),
        "unless": list(check.unless),
        "ranks": check.ranks,
        "since": ".".join(map(str, check.since)),
        "provisional": check.provisional,
    }
