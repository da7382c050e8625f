"""The steps of a run in bounded memory, however many they are.

    history = History.read(run / "metrics.jsonl")
    history.records      at most 1,000: of a longer run each stands for several steps in a row

Knows: which numbers of a record are means, which are counts that grow, and which are extremes.
Does not know: who draws them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.observe.jsonl import read_lines
from areal_report.rates import Record

LIMIT = 1000
LAST = 10
_GROWING = frozenset(
    {"time", "step", "version", "wall_s", "tokens_trained", "tokens_generated", "train_busy_s", "infer_busy_s"}
    | {"infer_wall_s", "failed", "dropped", "rejected", "filtered", "weight_updates", "lr", "stepped"}
)
"""Of several steps the last one's counts."""


class History:
    """What is kept of the steps. `rewards` has every step's `headline`, eight bytes each."""

    headline = "reward"
    """What a run is judged by: `loss` where its steps have no reward."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.rewards, self.steps = array("d"), array("q")
        self.evaluations: dict[int, float] = {}
        self.staleness: Counter[int] = Counter()
        self.num_episodes, self.max_staleness, self.num_steps = 0, 0, 0
        self.last: Sequence[Record] = ()
        """The last ten steps, as they were written."""
        self._merged: list[tuple[dict[str, Any], int]] = []  # Any: as Record; with the number of steps in it
        self.stride = 1
        """Steps that each of `records` stands for; the last one may stand for fewer."""
        for record in records:
            self.add(record)

    @classmethod
    def read(cls, path: Path) -> History:
        """Read a run's `metrics.jsonl`, also while it is written; one that is not there holds no step."""
        return cls(read_lines(path))

    @property
    def records(self) -> list[Record]:
        """Return what is kept of the steps, oldest first."""
        return [record for record, _ in self._merged]

    def add(self, record: Record) -> None:
        """Take the next step."""
        self.num_steps += 1
        self.last = (*self.last[-(LAST - 1) :], record)
        self.num_episodes += int(record.get("episodes", 0))
        self.max_staleness = max(self.max_staleness, int(record.get("staleness_max", 0)))
        self.staleness.update({int(lag): int(n) for lag, n in record.get("staleness_histogram", {}).items()})
        self.headline = headline_of(record)
        if isinstance(reward := record.get(self.headline), int | float):
            self.steps.append(int(record["step"]))
            self.rewards.append(float(reward))
        if isinstance(score := record.get(f"eval_{self.headline}"), int | float):
            self.evaluations[int(record["step"])] = float(score)
        if self._merged and self._merged[-1][1] < self.stride:
            self._merged[-1] = _merge(self._merged[-1], (dict(record), 1))
        else:
            self._merged.append((dict(record), 1))
        if len(self._merged) > LIMIT:
            pairs = (self._merged[at : at + 2] for at in range(0, len(self._merged), 2))
            self._merged = [pair[0] if len(pair) == 1 else _merge(*pair) for pair in pairs]
            self.stride *= 2


def headline_of(record: Record) -> str:
    """Return the number of a step that a run is judged by."""
    return "loss" if "reward" not in record and "loss" in record else "reward"


def _merge(first: tuple[dict[str, Any], int], second: tuple[dict[str, Any], int]) -> tuple[dict[str, Any], int]:
    (earlier, few), (later, many) = first, second
    return {name: _one(name, earlier, later, few, many) for name in earlier | later}, few + many


def _one(name: str, earlier: Mapping[str, Any], later: Mapping[str, Any], few: int, many: int) -> Any:  # Any: as Record
    if name not in earlier or name not in later:
        return later.get(name, earlier.get(name))
    a, b = earlier[name], later[name]
    if name in _GROWING or not (isinstance(a, int | float) and isinstance(b, int | float)):
        return b
    if name.endswith("_max"):
        return max(a, b)
    if name.endswith("_min"):
        return min(a, b)
    return (a * few + b * many) / (few + many)
