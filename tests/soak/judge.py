"""What counts as flat, and as trained once.

Knows: numbers.
Does not know: processes, files, runs.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

WARM_UP = 0.2
"""Share of the steps that a run may use to fill its caches and its store."""


@frozen(kw_only=True)
class Episode:
    """One trained episode.

    Example: Episode(task=12, member=0, step=7, staleness=1)
    """

    task: int
    member: int
    step: int
    staleness: int


@frozen(kw_only=True)
class Growth:
    """How a quantity grew after the warm-up.

    Example: Growth(first=181.2, last=181.4, per_1000_steps=0.05)
    """

    first: float
    last: float
    per_1000_steps: float
    """The slope of the line of least squares: one outlier, or where in a cycle the last sample fell, hardly counts."""


def growth(samples: Mapping[int, float]) -> Growth:
    """Fit the samples, by step, that lie after the warm-up."""
    after = {step: value for step, value in sorted(samples.items()) if step >= WARM_UP * max(samples)}
    slope = statistics.linear_regression(list(after), list(after.values())).slope
    values = list(after.values())
    return Growth(first=values[0], last=values[-1], per_1000_steps=1000 * slope)


def growing(found: Mapping[str, Growth], bound: float, unit: str) -> list[str]:
    """Return a line for each quantity that grew by more than the bound."""
    return [
        f"{name} grows by {each.per_1000_steps:.3g} {unit} in 1,000 steps, from {each.first:.4g} to {each.last:.4g}; "
        f"at most {bound:g}"
        for name, each in found.items()
        if each.per_1000_steps > bound
    ]


def not_whole(
    trained: Counter[Episode], *, used: Collection[int], steps: int, prompts: int, group: int, max_staleness: int
) -> list[str]:
    """Return what does not hold of what a run trained.

    Each group of the tasks that it says are done with is trained once, every step is full, the bound is kept; what is
    finished first is trained first, and a task may be left out at the end, but none that was begun long before.
    """
    early = set(range((steps - max_staleness - 2) * prompts)) - set(used)
    found = [f"tasks {_some(sorted(early))} are done with for nobody"] if early else []
    per_step: Counter[int] = Counter()
    tasks: Counter[tuple[int, int]] = Counter()
    for episode, count in trained.items():
        per_step[episode.step] += count
        tasks[episode.task, episode.member] += count
    if short := [step for step in range(1, steps + 1) if per_step[step] != prompts * group]:
        found.append(f"{len(short)} steps are not full, the first is {short[0]}")
    once = Counter((task, member) for task in used for member in range(group))
    for name, other in (("trained more than once", tasks - once), ("never trained", once - tasks)):
        if other:
            found.append(f"{other.total()} episodes {name}: {_some(sorted(other))}")
    if ages := sorted({each.staleness for each in trained if not 0 <= each.staleness <= max_staleness}):
        found.append(f"staleness {_some(ages)}, at most {max_staleness}")
    return found


def _some(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
