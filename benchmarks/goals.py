"""What every figure is to reach: the one place that the benchmarks and the table of the page read.

Knows: the goal of every result, by its name.
Does not know: how a figure is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Goal:
    """A bound of a ratio, or none; which side is better.

    Example: Goal(1.3, lower_is_better=True)
    """

    target: float | None
    lower_is_better: bool = False

    def met(self, ratio: float) -> bool | None:
        """Tell whether a ratio is on the good side of the bound or on it; None where there is none."""
        if self.target is None:
            return None
        return ratio <= self.target if self.lower_is_better else ratio >= self.target

    def __str__(self) -> str:
        """Say it."""
        if self.target is None:
            return "none"
        return f"{'at most' if self.lower_is_better else 'at least'} {self.target:g}"


def _at_least(target: float) -> Goal:
    return Goal(target)


def _at_most(target: float) -> Goal:
    return Goal(target, lower_is_better=True)


NONE, SMALLER = Goal(None), Goal(None, lower_is_better=True)
GOALS: Mapping[str, Goal] = {
    "agents": _at_least(0.8),
    "algorithms": _at_least(0.1),
    "async_vs_sync": _at_least(0.85),
    "controller": _at_most(1.0),
    "episode_store": _at_most(1.02),
    "equal_steps_spell_sync": _at_least(1.3),
    "equal_steps_spell_async": _at_least(2.5),
    "equal_steps_long_spell_sync": _at_least(3.0),
    "equal_steps_long_spell_async": _at_least(2.0),
    "freshness": _at_most(0.5),
    "generation": _at_least(1.1),
    "guard": SMALLER,
    "help": _at_most(1.0),
    "kinds": _at_least(0.5),
    "long_batch": _at_most(1.0),
    "memory": _at_most(1.1),
    "orchestration": _at_least(0.8),
    "orchestration_whole": NONE,
    "packing": _at_least(1.5),
    "prefix_sharing": _at_least(0.9),
    "processor_bound": _at_least(0.9),
    "reader_memory": _at_most(1.25),
    "restart": NONE,
    "resume": _at_most(0.02),
    "rollout_processes": _at_most(1.3),
    "rpc": NONE,
    "scale": _at_most(1.3),
    "scale_bytes": _at_most(1.0),
    "served": _at_least(1.0),
    "shared_devices": SMALLER,
    "time_to_reward": NONE,
    "train_step": _at_least(1.0),
    "weight_sync_collective": _at_least(0.9),
    "weight_sync_delta": _at_most(0.1),
    "weight_sync_disk": _at_least(1.7),
    "weight_sync_shm": _at_least(0.8),
    "weights_across_hosts_fan_out": _at_most(1.2),
    "weights_across_hosts_placement": _at_most(1.1),
    "weights_across_hosts_rate": _at_least(0.8),
}


def goal_of(name: str) -> Goal:
    """Return the goal of a result, or of what it is a variant of: `train_step_cuda` has that of `train_step`.

    Raises:
        LookupError: there is none; a figure that is to reach nothing has `NONE`.
    """
    known = name
    while known not in GOALS:
        known, parted, _ = known.rpartition("_")
        if not parted:
            raise LookupError(
                f"{name} has no goal\nwhy: every figure states one, or that it has none\nfix: add it to goals.py"
            )
    return GOALS[known]
