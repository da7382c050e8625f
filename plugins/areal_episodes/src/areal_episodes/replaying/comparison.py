"""Two runs, step by step: where the numbers of a replay are no longer those of the run.

Knows: which metrics do not depend on time.
Does not know: where steps come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from attrs import frozen

from areal_core.plugins.extensions import RunView

_GIVEN = ("episodes", "reward", "staleness_mean", "staleness_max", "staleness_histogram", "tokens")
_COMPUTED = ("loss", "grad_norm", "lr", "stepped", "sync_bytes", "weights")
_TIMES = ("_s", "seconds", "/peak_share")
"""How the name of a metric ends that depends on seconds."""


class Steps(Protocol):
    """The lines of a run by step."""

    def __getitem__(self, step: int, /) -> Mapping[str, Any]: ...


@frozen(kw_only=True)
class Divergence:
    """The first number that differs. Any: a number, a text, or a mapping of numbers, as in `metrics.jsonl`."""

    step: int
    metric: str
    run: Any
    replay: Any

    def __str__(self) -> str:
        return f"step {self.step}: {self.metric} is {self.replay!r} in the replay, {self.run!r} in the run"


class Comparison:
    """A `RunView` that compares every step with the run's own and shows it to another view."""

    def __init__(self, view: RunView, steps: Steps, diverged: Callable[[], None]) -> None:
        """Hold each step against `steps`, and call `diverged` at the first that differs. Any: lines of metrics."""
        self._view, self._steps, self._diverged = view, steps, diverged
        self.compared = 0
        """Steps that were the same."""
        self.divergence: Divergence | None = None

    def step(self, record: Mapping[str, Any]) -> None:
        """Compare one step and show it. Any: what `metrics.jsonl` got."""
        self._view.step(record)
        if self.divergence is not None:
            return
        self.divergence = first_difference(self._steps[record["step"]], record)
        if self.divergence is None:
            self.compared += 1
        else:
            self._diverged()

    def note(self, text: str) -> None:
        """Show one line."""
        self._view.note(text)

    def waiting(self, what: str) -> None:
        """Hand on what is waited for."""
        self._view.waiting(what)


def first_difference(run: Mapping[str, Any], replay: Mapping[str, Any]) -> Divergence | None:
    """Return the first metric of a step that differs: what was trained on first, then what came of it.

    A metric that only one of them has is of another version of areal, and left out. Any: lines of metrics.
    """
    for metric in _comparable(replay):
        if metric in run and run[metric] != (ours := _written(replay[metric])):
            return Divergence(step=int(replay["step"]), metric=metric, run=run[metric], replay=ours)
    return None


def _comparable(record: Mapping[str, Any]) -> Iterator[str]:
    yield from (metric for metric in _GIVEN if metric in record)
    yield from (metric for metric in record if metric.startswith("train/") and not metric.endswith(_TIMES))
    yield from (metric for metric in _COMPUTED if metric in record)


def _written(value: Any) -> Any:
    """Return a value as `metrics.jsonl` holds it. Any: see above."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
