"""The version of the contract, one (major, minor) pair per role.

Knows: what this core speaks and which manifests it accepts.
Does not know: where manifests come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONTRACT: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "train": (1, 4),
        "infer": (1, 5),
        "scheduler": (1, 1),
        "transport": (1, 2),
        "workflow": (1, 3),
        "objective": (1, 0),
        "estimator": (1, 0),
        "accept": (1, 0),
        "dataset": (1, 0),
        "reward": (1, 0),
        "logger": (1, 0),
        "device": (1, 0),
        "kind": (1, 0),
        "renderer": (1, 0),
        "sandbox": (1, 0),
        "endpoint": (1, 0),
    }
)
"""Role -> contract version. A minor adds with defaults; a major removes or changes."""

ROLES = tuple(CONTRACT)

QUIET_MINORS = 2
"""A plugin so many minors behind is driven without a word; an older one with a warning, until the next major."""


def accepts(role: str, theirs: tuple[int, int]) -> bool:
    """Tell whether this core can drive a plugin written for contract `theirs`.

    The major must be equal and the plugin's minor must not be newer than ours.
    """
    major, minor = CONTRACT[role]
    return theirs[0] == major and theirs[1] <= minor


def range_accepted(role: str) -> str:
    """Return the versions of plugins that this core drives, as a refusal shows them: `1.2 and older minors of 1`."""
    major, minor = CONTRACT[role]
    return f"{major}.{minor}" + (f" and older minors of {major}" if minor else "")


def ageing(role: str, theirs: tuple[int, int]) -> str:
    """Return the warning for an accepted plugin that is more than `QUIET_MINORS` behind; empty for any other."""
    major, minor = CONTRACT[role]
    if theirs[0] != major or minor - theirs[1] <= QUIET_MINORS:
        return ""
    return (
        f"written for {role} contract {theirs[0]}.{theirs[1]}, this core speaks {major}.{minor}; "
        f"it is driven until contract {major + 1}.0"
    )
