"""What happens when the next prompt cannot be had."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.benches.rollouts import RolloutBench

from areal_core.config.schema import RolloutConfig
from areal_core.contract.errors import DatasetError
from areal_core.contract.inference import SamplingParams

CONFIG = RolloutConfig(
    prompts_per_step=2, group_size=2, max_staleness=1, retries=0, sampling=SamplingParams(max_new_tokens=8)
)


class TornRows(Sequence[Mapping[str, Any]]):
    """Rows read when asked for, as those of `jsonl` and `hub`; one of them cannot be."""

    def __init__(self, torn: int, error: Exception) -> None:
        self.torn, self.error = torn, error

    def __len__(self) -> int:
        return 65

    def __getitem__(self, index: Any) -> Any:
        if index == self.torn:
            raise self.error
        return {"input_ids": [3 + index % 20, 4], "number": index}


@pytest.mark.parametrize("error", [DatasetError("row 9 has no column 'question'"), OSError("row 9 is on a bad sector")])
@pytest.mark.parametrize("torn", [1, 3, 7, 17])
def test_a_row_that_cannot_be_read_ends_the_run_by_name(torn: int, error: Exception) -> None:
    """Wherever admission meets it: at the start, after a step, or in a later turn of the loop. No prompt is skipped."""

    async def test() -> list[int]:
        trained: list[int] = []
        bench = RolloutBench(CONFIG, rows=TornRows(torn, error))
        try:
            with pytest.raises(DatasetError, match=r"row 9 (has no column|is on a bad sector)"):
                for _ in range(20):
                    trained += [group.task.index for group in await bench.step()]
        finally:
            await bench.close()
        return trained

    assert [index for index in asyncio.run(test()) if index >= torn] == []
