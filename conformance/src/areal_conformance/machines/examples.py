"""Values drawn from a hypothesis strategy, the same ones in every run.

Knows: how to draw without a random seed, a database or shrinking.
Does not know: what the values mean.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")
STEADY: dict[str, Any] = {  # Any: each setting has its own type
    "derandomize": True,
    "database": None,
    "deadline": None,
    "phases": (Phase.generate,),
    "suppress_health_check": list(HealthCheck),
}
"""Settings under which every run draws the same: nothing is shrunk, nothing is remembered."""


def examples(strategy: st.SearchStrategy[T], *, count: int) -> list[T]:
    """Return up to `count` values; fewer where the strategy has no more."""
    drawn: list[T] = []

    @settings(max_examples=count, **STEADY)
    @given(strategy)
    def draw(value: T) -> None:
        drawn.append(value)

    draw()
    return drawn
