"""A reward function of lists may be asked about several completions at once; each gets what it would get alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import RewardFailed
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_local.rewards.child import RewardTarget, Scorer
from areal_local.rewards.pool import RewardPool

FILE = """
import os
from attrs import frozen
from areal_core import reward

@frozen(kw_only=True)
class Size:
    size: int = 4
    wait_s: float = 600.0

@reward("several", config=Size)
def several(config):
    def score(completions, batch_size=config.size, batch_wait_s=config.wait_s):
        if "exit" in completions:
            os._exit(3)
        return [{"value": len(text), "asked": len(completions)} for text in completions]

    return score
"""


def value(completion: str, **row: object) -> RewardInput:
    return RewardInput(prompt="p", completion=completion, completion_ids=(4, 5), stop_reason="stop", row=row)


def target(tmp_path: Path, **options: object) -> RewardTarget:
    file = tmp_path / "several.py"
    file.write_text(FILE)
    return RewardTarget(name="several", options=options, imports=(str(file),))


def scored(tmp_path: Path, completions: Sequence[str], **options: object) -> list[RewardResult]:
    """Return what the pool says of completions that are asked about at the same time."""

    async def ask() -> list[RewardResult]:
        pool = RewardPool(target(tmp_path, **options), timeout_s=60.0)
        try:
            await pool.start()
            return await asyncio.gather(*(pool.score(value(text)) for text in completions))
        finally:
            await pool.close()

    return asyncio.run(ask())


def asked(results: Sequence[RewardResult]) -> list[float]:
    return [result.components["asked"] for result in results]


def test_full_batches_go_at_once_and_the_rest_when_the_first_has_waited(tmp_path: Path) -> None:
    """Four and four do not wait their ten minutes; without as many, a completion waits for others and then goes."""
    full = scored(tmp_path, ["a" * n for n in range(8)])
    alone = scored(tmp_path, ["a", "aa", "aaa"], size=2, wait_s=0.01)

    assert ([result.value for result in full], asked(full)) == ([float(n) for n in range(8)], [4.0] * 8)
    assert ([result.value for result in alone], asked(alone)) == ([1.0, 2.0, 3.0], [2.0, 2.0, 1.0])


def test_completions_of_one_turn_of_the_loop_travel_together(tmp_path: Path) -> None:
    """Also where nobody waits for others: the first does not go alone while those behind it wait for its return."""
    results = scored(tmp_path, ["a", "aa", "aaa"], wait_s=0.0)

    assert ([result.value for result in results], asked(results)) == ([1.0, 2.0, 3.0], [3.0] * 3)


def test_what_waits_for_others_ends_with_the_pool(tmp_path: Path) -> None:
    """Who asked is told, and closing waits for nobody."""

    async def test() -> None:
        pool = RewardPool(target(tmp_path), timeout_s=60.0)
        await pool.start()
        waiting = asyncio.create_task(pool.score(value("a")))
        await asyncio.sleep(0)
        await pool.close()

        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())


def test_a_batch_that_ends_its_process_is_asked_about_one_by_one(tmp_path: Path) -> None:
    """Only the completion that does it pays for it."""
    first, crashed, last = scored(tmp_path, ["a", "exit", "aaa"], size=3)

    assert (crashed.status, crashed.value) == (RewardStatus.CRASHED, None)
    assert ([first.value, last.value], asked([first, last])) == ([1.0, 3.0], [1.0, 1.0])


@pytest.mark.parametrize("options", [{"size": 0}, {"size": True}, {"wait_s": -1.0}, {"wait_s": float("inf")}])
def test_a_batch_size_that_is_none_is_refused_before_training(options: dict[str, object]) -> None:
    """With what the function says of itself."""
    with pytest.raises(RewardFailed, match="the reward function has batch_size"):
        Scorer(sized(**{"size": 4, "wait_s": 0.0, **options}))


def test_the_refusal_reaches_the_run(tmp_path: Path) -> None:
    """Not as a process that did not start."""
    with pytest.raises(RewardFailed, match="batch_size=0"):
        scored(tmp_path, [], size=0)


def sized(size: Any, wait_s: Any) -> Callable[..., object]:
    def score(completions: list[str], batch_size: Any = size, batch_wait_s: Any = wait_s) -> list[float]:
        return [float(len(text)) for text in completions]

    return score


def moody(batch: Sequence[RewardInput], batch_size: int = 3) -> list[object]:
    """Give a mapping, a failure, no number or too few answers, or raise, all as a completion wants."""
    for each in batch:
        if each.completion == "raise":
            raise KeyError(each.completion)
    found: list[object] = [
        {
            "nan": float("nan"),
            "failed": RewardResult(value=None, status=RewardStatus.TIMEOUT, detail="late"),
        }.get(each.completion, {"value": len(each.completion), "level": each.row.get("level", -1)})
        for each in batch
    ]
    return [answer for answer, each in zip(found, batch, strict=True) if each.completion != "lost"]


WORDS = st.sampled_from(["", "a", "bb", "raise", "nan", "failed", "lost"])
ROWS = st.sampled_from([{}, {"level": 1}, {"level": 2}, {"prompt": [{"role": "user", "content": "x"}], "level": 3}])


@given(st.lists(st.tuples(WORDS, ROWS), max_size=12))
def test_each_gets_the_result_it_would_get_alone(completions: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever is said of the others, and whatever columns their rows have."""
    scorer, values = Scorer(moody), [value(text, **row) for text, row in completions]

    together = [evolve(result, seconds=0.0) for result in scorer(values)]
    alone = [evolve(result, seconds=0.0) for one in values for result in scorer([one])]

    assert together == alone


def test_a_call_is_about_rows_of_the_same_columns() -> None:
    """A list of a column holds a value of every completion, and of text and conversations there are two calls."""
    calls: list[dict[str, Any]] = []

    class Remembers:
        batch_size = 8

        def __call__(self, completions: list[Any], **columns: Any) -> list[float]:
            calls.append({"completions": completions, **columns})
            return [0.0 for _ in completions]

    talk = [{"role": "user", "content": "x"}]
    Scorer(Remembers())([value("a", level=1), value("b", gold=2), value("c", level=3), value("d", prompt=talk)])

    assert [call["completions"] for call in calls] == [["a", "c"], ["b"], [[{"role": "assistant", "content": "d"}]]]
    assert [(call.get("level"), call.get("gold")) for call in calls] == [([1, 3], None), (None, [2]), (None, None)]
    assert all("batch" not in call for call in calls)


def test_settings_are_never_taken_from_a_row() -> None:
    """A column of that name is a column."""

    def score(completions: list[str], batch_size: int = 2) -> list[float]:
        return [float(batch_size == 2) for _ in completions]

    results = Scorer(score)([value("a", batch_size=9), value("bb", batch_size=9)])

    assert [(result.value, result.detail) for result in results] == [(1.0, ""), (1.0, "")]
