"""The reward `nothing`, for runs that learn from something else than a reward."""

from __future__ import annotations


class Nothing:
    """Gives 0 to every answer."""

    def __call__(self, completion: str) -> float:
        """Return 0."""
        return 0.0
