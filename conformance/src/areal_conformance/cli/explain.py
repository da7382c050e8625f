"""`areal conformance explain CHECK`: what it claims, why, when it runs, and what it catches.

Knows: the facts of a check.
Does not know: how it is made.
"""

from __future__ import annotations

import difflib
import inspect

from areal_conformance.check import Check
from areal_conformance.checks import AREAS, checks_in, extra_fix, missing
from areal_conformance.inventory import read_inventory
from areal_conformance.laws import LAWS
from areal_conformance.proof import known_mutants
from areal_conformance.spec import link
from areal_core.contract.errors import ConfigError, EngineMissing


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
    rest = (inspect.getdoc(check.body) or "").partition("\n")[2].strip()
    if rest:
        lines += ["", rest]
    if killed is None:
        lines += [
            "",
            "areal-conformance-proof, not installed here, has the deliberately broken backends it catches.",
        ]
    else:
        lines += ["", f"kills {len(killed)} of the deliberately broken backends:"]
        lines += [f"  {name}: {defect}" for name, defect in sorted(killed.items())]
    lines += ["", f"alone: areal conformance run --backend NAME --check {check.id}"]
    return "\n".join(lines)
