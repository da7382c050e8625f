"""One name of another system, and what it is called here.

Knows: the shape of a row.
Does not know: any name (`trl`, `verl`, `areal`), or how one is looked up (`called`).
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Name:
    """What a key of another system is here: keys, none where there is no equal, and what else to know.

    Example: Name(("rollout.prompts_per_step",), "prompts, not answers")
    """

    ours: tuple[str, ...]
    note: str = ""


def to(*ours: str, note: str = "") -> Name:
    """Return a name that has one or several equals."""
    return Name(ours, note)


def nothing(note: str) -> Name:
    """Return a name without an equal, and why, or what does its work."""
    return Name((), note)


Names = dict[str, Name]
