"""One number of a run, as a glossary has it.

Knows: the shape of an entry.
Does not know: any number (`entries`).
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Metric:
    """A number of `metrics.jsonl`, or several that are told together.

    `meaning` is markdown, with formulas between dollar signs. A name that begins with `_` is an ending that the first
    name may have.

    Example: Metric(names=("train/reward", "_std"), section="Rewards", meaning="of trajectories")
    """

    names: tuple[str, ...]
    section: str
    meaning: str
    unit: str = ""
    source: str = ""
    healthy: str = ""
    """What it is like in a run that learns; empty where there is no such thing."""
    act: str = ""
    """What to look at or change where it is not."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every whole name, endings added."""
        return tuple(f"{self.names[0]}{name}" if name.startswith("_") else name for name in self.names)
