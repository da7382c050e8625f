"""What a synchronous step is trained on does not depend on who finished first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.benches.rollouts import RolloutBench

from areal_core.config.schema import RolloutConfig
from areal_core.contract.batch import Batch


@pytest.mark.parametrize("seconds", [(1.0, 9.0), (9.0, 1.0), (0.2, 0.3)])
def test_batches_are_the_same_in_whatever_order_replicas_finish(seconds: Sequence[float]) -> None:
    """The same groups, members and columns, in the same rows of the batch."""
    assert asyncio.run(_batches(seconds)) == asyncio.run(_batches((1.0, 1.0)))


async def _batches(seconds: Sequence[float]) -> list[list[list[float]]]:
    """Return the columns of three steps, from two replicas that take so many seconds a token."""
    config = RolloutConfig(prompts_per_step=4, group_size=3, max_staleness=0)
    bench = RolloutBench(config, num_replicas=2)
    for engine, token_s in zip(bench.engines, seconds, strict=True):
        engine._token_s = token_s
    steps = []
    for _ in range(3):
        groups = await bench.step()
        batch = Batch.pack([episode for group in groups for episode in group.episodes])
        columns = {**batch.tokens, **batch.sequences}
        steps.append([columns[name].tolist() for name in sorted(columns)])
    assert min(len(engine.requests) for engine in bench.engines) > 6, "one replica did it all"
    await bench.close()
    return steps
