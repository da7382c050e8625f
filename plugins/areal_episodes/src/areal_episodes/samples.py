"""A few of the episodes a step trained, as rows of a table: the extension `samples`.

Knows: the reader.
Does not know: who shows the table.
"""

from __future__ import annotations

from pathlib import Path

from areal_core.contract.errors import StorageError
from areal_episodes.reader import Filter, Order, Reader

COLUMNS = ("step", "task", "reward", "prompt", "completion", "stop", "tokens")
MAX_TEXT = 4000
"""Characters of a prompt or an answer; the store has the whole."""


def samples(folder: Path, step: int, number: int) -> list[tuple[object, ...]]:
    """Return at most `number` episodes of a step, best and worst in turn, as `COLUMNS` has it; none if none is there.

    The store writes a moment after the step: ask about the step before.
    """
    try:
        reader = Reader(folder)
    except StorageError:
        return []
    with reader:
        chosen = Filter(step=step, fate="trained")
        best, worst = (list(reader.facts(chosen, order=order, limit=number)) for order in (Order.BEST, Order.WORST))
        found = {facts["id"]: facts for pair in zip(best, worst, strict=True) for facts in pair}
        return [_row(reader, facts) for facts in list(found.values())[:number]]


def _row(reader: Reader, facts: object) -> tuple[object, ...]:
    assert isinstance(facts, dict)
    _, trajectories = reader.content(facts["id"])
    turns = trajectories[-1] if trajectories else []
    texts = [str(turn["text"])[:MAX_TEXT] for turn in turns]
    prompt, completion = (texts[0] if len(texts) > 1 else ""), (texts[-1] if texts else "")
    return facts["step"], facts["task_id"], facts["reward"], prompt, completion, facts["stop"], facts["output_tokens"]
