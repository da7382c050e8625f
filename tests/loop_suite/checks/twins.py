"""Equal rows: each is a prompt of its own.

Knows: task names.
Does not know: what a row holds.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

if TYPE_CHECKING:
    from ..bench import LoopBench


@check("loop.tasks.equal_rows", level=Level.LOOP, law=4, spec="index#law-by-law")
async def equal_rows(bench: LoopBench) -> None:
    """Rows that are equal, or one object given twice, are each trained on once per epoch, also after a resume."""
    one, two = {"input_ids": [3, 4], "number": 0}, {"input_ids": [5, 4], "number": 1}
    rows = [one, dict(one), two, one, dict(two), {"input_ids": [7, 4], "number": 2}]
    for shuffle in (False, True):
        options = {"prompts": 2, "group": 1, "rows": rows, "shuffle": shuffle}
        trained: list[str] = []
        async with bench.rollouts(**options, length=lambda _request: 2) as side:  # type: ignore[arg-type]
            for _ in range(4):
                trained += [str(group.task.task_id) for group in await side.step()]
            state = json.loads(json.dumps(side.executor.state()))
        async with bench.rollouts(**options, length=lambda _request: 2, state=state) as side:  # type: ignore[arg-type]
            for _ in range(5):
                trained += [str(group.task.task_id) for group in await side.step()]
        counts = Counter(trained)
        wanted = {f"train/{epoch}/{row}" for epoch in range(3) for row in range(6)}
        wrong = sorted(name for name in wanted | set(counts) if counts[name] != (name in wanted))
        told = f"of 6 rows, three of them equal and two others, in three epochs {len(counts)} prompts were trained on"
        expect(not wrong, f"{told}; not once: {', '.join(wrong)}")
