"""`areal conformance list` and `areal conformance explain CHECK`: which checks there are, and all about one.

Knows: a table and its JSON, both made from the inventory, so that no check is imported; the facts of one that is.
Does not know: how a check is made.
"""

from __future__ import annotations

import difflib
import inspect
import json as jsonlib
from typing import Annotated, Any

import cattrs
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from areal_conformance.check import CHECKED_ROLES, STATIC, Check, Level
from areal_conformance.checks import AREAS, checks_in, extra_fix, missing
from areal_conformance.inventory import Pinned, read_inventory
from areal_conformance.laws import LAWS
from areal_conformance.proof import known_mutants
from areal_conformance.spec import link
from areal_core.contract.errors import ConfigError, EngineMissing

MAX_WIDTH = 240
_SHOWN = ["title", "role", "level", "tier", "law", "spec", "requires", "unless", "ranks", "since", "provisional"]


def show_list(
    *, role: str = "", level: int | None = None, json: Annotated[bool, Parameter(negative=())] = False
) -> int:
    """List the checks.

    Args:
        role: Only this role: static, train, infer, pair, scheduler, transport, workflow, endpoint, renderer, device.
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


def explain(check: str) -> int:
    """Explain one check in full.

    Args:
        check: Its id; areal conformance list shows them.
    """
    pinned = read_inventory().checks
    role = check.partition(".")[0]
    if check in pinned and missing(role):
        raise EngineMissing(
            f"{check} cannot be read here", why=f"it imports {', '.join(missing(role))}, not installed", fix=extra_fix()
        )
    found = checks_in(role).get(check) if role in AREAS else None
    if found is None:
        near = difflib.get_close_matches(check, pinned, n=3)
        raise ConfigError(
            f"there is no check {check!r}",
            fix=f"did you mean {' or '.join(near)}?" if near else "areal conformance list",
        )
    mutants = known_mutants()
    killed = {name: mutant.defect for name, mutant in mutants.items() if check in mutant.killers}
    print(explained(found, killed if mutants else None))
    return 0


def explained(check: Check, killed: dict[str, str] | None) -> str:
    """Return the text; `killed` is mutant -> defect, and None where no mutants are installed."""
    lines = [
        check.id,
        f"  {check.title}",
        "",
        f"law {check.law}: {LAWS[check.law]}",
        f"contract: {link(check.spec)}",
        f"level {int(check.level)} ({check.level.name.lower()}), tier {check.tier}"
        + (f", {check.ranks} ranks" if check.ranks > 1 else "")
        + f", since contract {check.since[0]}.{check.since[1]}, deadline {check.deadline_s:g} s"
        + (", provisional: without effect on the verdict" if check.provisional else ""),
    ]
    if check.requires:
        lines.append(f"made where claimed: {', '.join(check.requires)}")
    if check.unless:
        lines.append(f"made where not claimed: {', '.join(check.unless)}")
    if check.figures:
        lines += ["tells, and holds to bounds where some are set (Adapter.promises, --bounds):"]
        lines += [f"  {figure}" for figure in check.figures]
    rest = (inspect.getdoc(check.body) or "").partition("\n")[2].strip()
    if rest:
        lines += ["", rest]
    if killed is None:
        lines += ["", "areal-conformance-proof, not installed here, has the deliberately broken backends it catches."]
    else:
        lines += ["", f"kills {len(killed)} of the deliberately broken backends:"]
        lines += [f"  {name}: {defect}" for name, defect in sorted(killed.items())]
    lines += ["", f"alone: areal conformance run --backend NAME --check {check.id}"]
    return "\n".join(lines)
