"""Several data sets as one: shares by weight, each set's rows in an order of its own, all of it decided by row numbers.

Row n of a mixture is the same in every process and after every resume: who is next is decided by weights alone, the set
with the largest deficit, and which row of it by a seeded permutation per epoch of the set.

Knows: shares, orders, lengths of prompts, and which sets are named.
Does not know: what a row holds beside its prompt and the column it is ordered by.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_core.contract.errors import ConfigError, DatasetError
from areal_core.plugins.registry import current_registry
from areal_tasks.datasets.rows import LazyRows, Row

MAX_READ = 200_000
"""Rows of a set that is read whole, to be filtered or ordered."""
MAX_ROWS = 1_000_000
"""Rows of a mixture that is not told how many."""
Weights = Callable[[int], Sequence[float]]
"""Row number of the mixture -> a weight for each set."""


@frozen(kw_only=True)
class SetConfig:
    """One set of a mixture: `name` and `options` as under `data`, and its share.

    Example: {name: jsonl, options: {path: hard.jsonl}, weight: 2, epochs: 3, order_by: difficulty}
    """

    name: str
    """Registered name of the data set."""
    options: Mapping[str, Any] = Factory(dict)
    """The data set's own keys."""
    label: str = ""
    """What rows have in the column `set`; empty means `name`."""
    weight: float = 1.0
    """Its share of the rows, by comparison with the others'."""
    weight_from: tuple[tuple[int, float], ...] = ()
    """In place of `weight`, points [row number of the mixture, weight] with straight lines between them, for example
    [[0, 0.0], [2000, 1.0]]."""
    epochs: int = field(default=1, validator=validators.ge(1))
    """How often a row is used at most; the mixture ends where a set that is still wanted has no more."""
    order_by: str = ""
    """A column: smaller values first, in every epoch. Empty takes the rows in another random order each epoch."""
    min_prompt_chars: int = field(default=0, validator=validators.ge(0))
    """Rows whose prompt is shorter are left out."""
    max_prompt_chars: int = field(default=0, validator=validators.ge(0))
    """Rows whose prompt is longer are left out; 0 bounds nothing."""


@frozen(kw_only=True)
class MixtureConfig:
    """Options of `mixture`. With `data.shuffle: false` every part of a run has these shares."""

    sets: tuple[SetConfig, ...] = field(converter=tuple[SetConfig, ...], validator=validators.min_len(1))
    """The sets, with what they share."""
    seed: int = 1
    """Of the order of sets and rows."""
    size: int = field(default=0, validator=validators.ge(0))
    """Rows; 0 takes as many as the sets' epochs allow, a million at most."""

    def __attrs_post_init__(self) -> None:
        registry = current_registry()
        for number, each in enumerate(self.sets):
            path = f"data.options.sets[{number}]"
            points = [weight for _, weight in each.weight_from] or [each.weight]
            if not 0 <= min(points) <= max(points) < float("inf") or max(points) == 0:
                raise ConfigError(
                    f"the weight of {path} is {[*each.weight_from] or each.weight}",
                    why="a weight is a number of 0 or more, and not always 0",
                    fix="for example weight: 0.5, or weight_from: [[0, 1.0], [1000, 0.1]]; leave out an unwanted set",
                )
            registry.check_engine("dataset", each.name)
            registry.options("dataset", each.name, each.options, f"{path}.options")


def mixture(config: MixtureConfig) -> Mixture:
    """Build the sets and mix them: the data set `mixture`.

    Raises:
        DatasetError: a set has no rows, none of them fits, or it is too large to be filtered or ordered.
    """
    points = [each.weight_from or ((0, each.weight),) for each in config.sets]
    return mixture_of(config.sets, lambda number: [_at(each, number) for each in points], config.size, config.seed)


def mixture_of(sets: Sequence[SetConfig], weights: Weights, size: int = 0, seed: int = 1) -> Mixture:
    """Build the sets and mix them by a function of the row number, for a data set of one's own.

    Raises:
        DatasetError: as `mixture`.
    """
    registry, made = current_registry(), list[_Set]()
    for each in sets:
        rows = registry.build("dataset", each.name, each.options)
        assert isinstance(rows, Sequence)
        made.append(_Set(_chosen(each, rows), each, seed + len(made)))
    return Mixture(made, weights, size)


class Mixture(Sequence[Row]):
    """Rows of several sets; `weights` may be any function of the row number."""

    def __init__(self, sets: Sequence[_Set], weights: Weights, size: int = 0) -> None:
        """Decide which set each row is of.

        Raises:
            DatasetError: there is not one row.
        """
        self._sets = sets
        self._which, self._turn = array("H"), array("L")
        left, turns = [each.num_turns for each in sets], [0] * len(sets)
        deficits = [0.0] * len(sets)
        for number in range(size or MAX_ROWS):
            now = weights(number)
            total = sum(now)
            if total <= 0:
                break
            deficits = [deficit + weight / total for deficit, weight in zip(deficits, now, strict=True)]
            chosen = max(range(len(sets)), key=lambda k: deficits[k] if now[k] > 0 else float("-inf"))
            if turns[chosen] == left[chosen]:
                break
            deficits[chosen] -= 1.0
            self._which.append(chosen)
            self._turn.append(turns[chosen])
            turns[chosen] += 1
        if not self._which:
            raise DatasetError("the mixture has no rows", why="no set is wanted at its beginning", fix="raise a weight")

    def __len__(self) -> int:
        return len(self._which)

    def __getitem__(self, index: Any) -> Any:  # Any: an int gives a row, a slice gives rows
        if isinstance(index, slice):
            numbers = range(len(self))[index]
            return LazyRows(len(numbers), lambda place: self[numbers[place]])
        return self._sets[self._which[index]].row(self._turn[index])


class _Set:
    """The rows of one set, turn by turn."""

    def __init__(self, rows: Sequence[Row], config: SetConfig, seed: int) -> None:
        self._rows, self._config, self._seed = rows, config, seed
        self._orders: dict[int, Sequence[int]] = {}

    @property
    def num_turns(self) -> int:
        """Return how many rows it can give."""
        return len(self._rows) * self._config.epochs

    def row(self, turn: int) -> Row:
        """Return the row of a turn, with the set's label."""
        epoch, place = divmod(turn, len(self._rows))
        if not self._config.order_by and epoch not in self._orders:
            order = array("L", range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._orders[epoch] = order
        number = place if self._config.order_by else self._orders[epoch][place]
        return {"set": self._config.label or self._config.name, **self._rows[number]}


def _chosen(config: SetConfig, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows whose prompt has a length that is wanted, in the order that is wanted."""
    if not (config.order_by or config.min_prompt_chars or config.max_prompt_chars):
        return rows
    if len(rows) > MAX_READ:
        raise DatasetError(
            f"{config.name} has {len(rows):,} rows, too many to be filtered or ordered",
            why=f"every row is read for that, {MAX_READ:,} at most",
            fix="set its options.size or options.limit",
        )
    lengths = [prompt_chars(row.get("messages", row.get("prompt"))) for row in rows]
    longest = config.max_prompt_chars or float("inf")
    kept = [number for number, length in enumerate(lengths) if config.min_prompt_chars <= length <= longest]
    if not kept:
        raise DatasetError(
            f"no row of {config.name} has a prompt of the length that is wanted",
            why=f"they have {min(lengths, default=0):,} to {max(lengths, default=0):,} characters",
            fix="correct min_prompt_chars and max_prompt_chars",
        )
    if config.order_by:
        missing = next((number for number in kept if config.order_by not in rows[number]), None)
        if missing is not None:
            raise DatasetError(
                f"row {missing} of {config.name} has no column {config.order_by!r}",
                why="order_by names it",
                fix="correct order_by, or the data",
            )
        kept.sort(key=lambda number: rows[number][config.order_by])
    return LazyRows(len(kept), lambda place: rows[kept[place]])


def _at(points: Sequence[tuple[int, float]], number: int) -> float:
    """Return a weight at a row number: between two points on the line through both, outside as at the nearest."""
    if len(points) == 1:
        return points[0][1]
    before = [point for point in sorted(points) if point[0] <= number]
    after = [point for point in sorted(points) if point[0] > number]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 + (y1 - y0) * (number - x0) / (x1 - x0)


def prompt_chars(prompt: object) -> int:
    """Count a prompt's characters, without making a text of it."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Mapping):
        return sum(map(prompt_chars, prompt.values()))
    return sum(map(prompt_chars, prompt)) if isinstance(prompt, list | tuple) else 0
