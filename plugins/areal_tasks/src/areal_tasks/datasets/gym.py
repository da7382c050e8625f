"""Every task of reasoning-gym by its name, to be scored by reasoning-gym itself.

Knows: how an item becomes a row.
Does not know: any task's items or options; those are reasoning-gym's own, by their names there.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.rows import LazyRows, Row
from areal_tasks.datasets.seeds import SplitConfig


@frozen(kw_only=True)
class GymConfig(SplitConfig):
    """Options of the data set `reasoning_gym`.

    Example: GymConfig(task="chain_sum", options={"max_terms": 3}, prompt="{question}\\nAnswer:")
    """

    task: str = field(validator=validators.min_len(1))
    """A name of reasoning-gym, for example chain_sum, countdown, sudoku."""
    options: Mapping[str, Any] = Factory(dict)  # Any: the task's own
    """The task's own options; `seed` and `size` are those beside."""
    prompt: str = field(default="{question}", validator=validators.matches_re(r"(?s).*\{question\}.*"))
    """What is asked; {question} is the item's question."""


def gym(config: GymConfig) -> LazyRows:
    """Return rows {"prompt": the question, "answer": one answer, "entry": reasoning-gym's item}.

    Raises:
        DatasetError: there is no such task, or it refuses its options.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if config.task not in DATASETS or config.task == "composite":
        near = difflib.get_close_matches(config.task, DATASETS, n=3)
        raise DatasetError(
            f"reasoning-gym has no task {config.task!r}" if config.task != "composite" else "composite is no task here",
            why=f"it has {len(DATASETS) - 1}, among them {', '.join(near or sorted(DATASETS)[:8])}",
            fix="correct data.options.task; several tasks are a `mixture`",
        )
    if taken := {"seed", "size"} & set(config.options):
        raise DatasetError(
            f"{min(taken)} stands among the options of {config.task}",
            why="it decides which items a split has",
            fix=f"set data.options.{min(taken)} instead",
        )
    try:
        items = reasoning_gym.create_dataset(config.task, seed=config.first, size=config.size, **config.options)
    except (AssertionError, TypeError, ValueError) as error:
        raise DatasetError(
            f"reasoning-gym's task {config.task!r} refuses its options",
            why=f"{type(error).__name__}: {error}",
            fix="correct data.options.options, or make data.options.size smaller",
        ) from error

    def make(index: int) -> Row:
        entry = items[index]
        prompt = config.prompt.replace("{question}", entry["question"])
        return {"prompt": prompt, "answer": entry["answer"], "entry": entry}

    return LazyRows(config.size, make)
