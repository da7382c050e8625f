"""A reward that hardly gives two answers the same: a user's file."""

from __future__ import annotations

from typing import Any

from areal_core import reward


@reward("letters")
def letters(completion: str, **_: Any) -> float:
    """Pay for letters that differ. Any: as rewards are."""
    return len(set(completion)) / 16
