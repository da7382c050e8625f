"""A reward that nearly always tells the members of a group apart, so that every step changes the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from areal_core import reward


@reward("token_hash")
def token_hash(
    prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Mapping[str, object]
) -> float:
    """Score a completion between 0 and 1, by its tokens and their order alone."""
    value = 0
    for token in completion_ids:
        value = (value * 31 + token) % 101
    return value / 100
