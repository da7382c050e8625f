"""Which checks a run owes: the profile is role x level asked x ranks asked.

A check above the level or with more ranks than asked is not in the profile, and line one counts it.
A check that is pinned in the inventory and not to be found any more is in the profile, and missing.

Knows: how the pinned and the present checks make a profile.
Does not know: how they end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import frozen

from areal_conformance.check import STATIC, Check
from areal_conformance.inventory import Inventory, Pinned
from areal_conformance.run.record import Row, row_of
from areal_conformance.session import spoken
from areal_core.contract.version import ROLES

Needs = tuple[int, int, tuple[int, int]]
"""Level, ranks, version of the contract."""


@frozen(kw_only=True)
class Profile:
    """The checks to be made, in order, and what the report must hold whatever happens."""

    checks: tuple[Check, ...]
    gone: tuple[Row, ...] = ()
    """Pinned, not provided by the suite any more: its modules were changed."""
    left_out: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return every row of the profile, none of them run."""
        return tuple(sorted((*map(row_of, self.checks), *self.gone), key=lambda row: (row.level, row.id)))


def make_profile(
    role: str,
    checks: Iterable[Check],
    inventory: Inventory,
    *,
    level: int,
    ranks: int,
    contract: tuple[int, int] | None = None,
) -> Profile:
    """Return the profile of a role; `checks` are all of the role that there are.

    `contract` leaves out the checks of rules that came later; None: the version of this core.
    """
    spoken_here = spoken(role)
    present = {check.id: check for check in checks if check.since <= spoken_here}
    asked = (level, ranks, contract or spoken_here)
    gone = {key: pinned for key, pinned in _pinned_of(role, inventory).items() if key not in present}
    left_out: Counter[str] = Counter()
    kept, lost = [], []
    for check in present.values():
        why = _outside((check.level, check.ranks, check.since), asked)
        kept.append(check) if not why else left_out.update([why])
    for key, pinned in gone.items():
        if version_of(pinned.since) > spoken_here:
            continue
        why = _outside(_needs(pinned), asked)
        if why:
            left_out.update([why])
        else:
            lost.append(_gone(key, pinned.level, pinned.tier, pinned.provisional))
    unpinned = sorted(set(present) - set(inventory.checks))
    told = ", ".join(unpinned[:3]) + (f" and {len(unpinned) - 3} more" if len(unpinned) > 3 else "")
    notes = (f"not pinned in the inventory: {told}",) if unpinned else ()
    ordered = tuple(sorted(kept, key=lambda check: (check.level, check.id)))
    return Profile(checks=ordered, gone=tuple(lost), left_out=dict(sorted(left_out.items())), notes=notes)


def pinned_for(
    role: str, inventory: Inventory, *, level: int, ranks: int, contract: tuple[int, int]
) -> dict[str, Pinned]:
    """Return the pinned checks that a run owes, by id; `contract` is the version it is held to."""
    asked = (level, ranks, contract)
    return {key: one for key, one in _pinned_of(role, inventory).items() if not _outside(_needs(one), asked)}


def version_of(text: str) -> tuple[int, int]:
    """Return `1.2` as (1, 2).

    Raises:
        ValueError: it is no version of a contract.
    """
    major, minor = text.split(".")
    return int(major), int(minor)


def _pinned_of(role: str, inventory: Inventory) -> dict[str, Pinned]:
    roles = (STATIC, role) if role in ROLES else (role,)
    return {key: pinned for key, pinned in inventory.checks.items() if pinned.role in roles}


def _needs(pinned: Pinned) -> Needs:
    return pinned.level, pinned.ranks, version_of(pinned.since)


def _outside(needs: Needs, asked: Needs) -> str:
    if needs[2] > asked[2]:
        return f"--contract {needs[2][0]}.{needs[2][1]}"
    if needs[0] > asked[0]:
        return f"--level {int(needs[0])}"
    return f"--ranks {needs[1]}" if needs[1] > asked[1] else ""


def _gone(key: str, level: int, tier: str, provisional: bool) -> Row:
    why = "pinned in the inventory, and no module of the suite has it"
    return Row(id=key, title="(gone)", law=0, spec="", level=level, tier=tier, provisional=provisional, message=why)
