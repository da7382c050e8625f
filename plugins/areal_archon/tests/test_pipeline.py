"""Pipelines of two and of four real ranks against the whole model in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_archon.schedules import SCHEDULES, Schedule
from areal_core.contract.errors import LayoutError, WrongType

pytestmark = pytest.mark.slow

Results = list[dict[str, dict[str, Any]]]
"""Of each rank, case by case."""
SCRIPT = Path(__file__).with_name("pipeline_ranks.py")
WORLDS = (2, 4)
CLOSE = 1e-5
ZERO_BUBBLE = ("InterleavedZeroBubble", "ZBVZeroBubble")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on two ranks and then on four, which are forks of one process."""
    path = tmp_path_factory.mktemp("pipeline")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    return path


def results(folder: Path, world: int) -> Results:
    return [json.loads((folder / f"pipeline-{world}-{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_gradients_are_those_of_one_process(folder: Path, world: int) -> None:
    """Law 6: every schedule, few and many micro-batches of unequal lengths, also those that must be filled up."""
    cases = [(name, case) for rank in results(folder, world) for name, case in rank["schedules"].items()]

    assert len(cases) == world * 6 * 4
    for name, case in cases:
        assert case["gradient"] < CLOSE, name


@pytest.mark.parametrize("world", WORLDS)
def test_columns_are_those_of_one_process_and_equal_on_every_rank(folder: Path, world: int) -> None:
    """Scoring returns each micro-batch's own columns, cut to its length, without gradient."""
    for rank in results(folder, world):
        for name, case in rank["schedules"].items():
            assert case["columns"] < CLOSE, name
            assert case["alike"], name
            assert not case["needs_grad"], name


@pytest.mark.parametrize("world", WORLDS)
def test_only_the_rank_that_has_the_columns_scores_and_each_micro_batch_once(folder: Path, world: int) -> None:
    """What only fills a schedule is never scored."""
    for number, rank in enumerate(results(folder, world)):
        for name, case in rank["schedules"].items():
            kind, _, count = name.split("-")
            last = number == (0 if kind == "ZBVZeroBubble" else world - 1)
            assert last == case["has_last"], name
            assert (list(range(int(count))) if last else []) == case["asked"], name


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_left_on_the_modules(folder: Path, world: int) -> None:
    """An engine can call its stages itself between two steps."""
    for rank in results(folder, world):
        assert {case["hooks"] for case in rank["schedules"].values()} == {0}


@pytest.mark.parametrize("world", WORLDS)
def test_a_second_call_adds_to_the_first(folder: Path, world: int) -> None:
    """With another number of micro-batches of another length, and a scoring pass between."""
    for rank in results(folder, world):
        for name, case in rank["repeated"].items():
            assert case["gradient"] < CLOSE, name
            assert case["nothing"] == 0


@pytest.mark.parametrize("world", WORLDS)
def test_both_holders_of_a_tied_weight_get_the_same_whole_gradient(folder: Path, world: int) -> None:
    """The embedding and the head stay one weight, to the bit, on two ranks and on one (the V)."""
    ranks = results(folder, world)

    for name in SCHEDULES:
        assert all(rank["tied"][name]["gradient"] < CLOSE for rank in ranks), name
        bits = [value for rank in ranks for value in rank["tied"][name]["bits"]]
        assert len(bits) == 2, name
        assert bits[0] == bits[1], name


@pytest.mark.parametrize("world", WORLDS)
def test_stages_may_recompute_their_activations(folder: Path, world: int) -> None:
    """Zero-bubble schedules go backward through a stage twice; both times it computes the same."""
    for rank in results(folder, world):
        assert all(distance < CLOSE for distance in rank["recomputed"].values()), rank["recomputed"]


@pytest.mark.parametrize("world", WORLDS)
def test_an_error_in_score_reaches_every_rank_at_once(folder: Path, world: int) -> None:
    """Nobody waits for a gradient that never comes, and the pipeline can be used again."""
    for rank in results(folder, world):
        for name, case in rank["failing_score"].items():
            expected = "ValueError" if case["has_last"] else "TrainError"
            assert case["error"][0] == expected, name
            assert case["seconds"] < 100, name  # of 120 until the group gives up
            assert case["gradient"] < CLOSE, name


@pytest.mark.parametrize("world", WORLDS)
def test_a_stage_that_raises_keeps_nobody_longer_than_the_timeout_of_the_group(folder: Path, world: int) -> None:
    """The rank raises its own error; the others raise once their group gives up."""
    for rank in results(folder, world):
        case = rank["failing_stage"]
        assert case["message"].startswith("ModelError: this stage" if case["has_last"] else "RuntimeError"), case
        assert case["seconds"] < 30, case  # 8 s per wait, and three ranks may wait for each other


def test_stages_that_are_no_part_of_the_schedule_are_refused(folder: Path) -> None:
    """Before anything is sent."""
    for rank in results(folder, 2):
        for error in rank["refusals"].values():
            assert error[0] == "LayoutError"
            assert "fix: build those that Schedule.stages names" in error[1]


def test_fsdp_sums_the_gradient_of_a_stage_over_data_ranks_once(folder: Path) -> None:
    """Two pipelines with data of their own, each stage in shards, two steps without dropping gradients."""
    for rank in results(folder, 4):
        cases = {name: case for name, case in rank["data_ranks"].items() if "gradient" in case}
        assert len(cases) == 12
        for name, case in cases.items():
            assert case["gradient"] < CLOSE, name
            assert case["columns"] < CLOSE, name
            assert not case["left_gathered"], name


def test_tied_weights_may_be_sharded(folder: Path) -> None:
    """Each data rank adds up its own shards of the two gradients."""
    for rank in results(folder, 4):
        assert all(distance < CLOSE for distance in rank["data_ranks"]["tied"].values()), rank["data_ranks"]["tied"]


def test_zero_bubble_refuses_fsdp_units_that_reshard(folder: Path) -> None:
    """FSDP2's default would give wrong gradients without a word."""
    for rank in results(folder, 4):
        refused = rank["data_ranks"]["refused"]
        assert refused.keys() == set(ZERO_BUBBLE)
        for kind, message in refused.values():
            assert kind == "LayoutError"
            assert "reshard_after_forward=False" in message


def test_what_is_refused_would_be_wrong(folder: Path) -> None:
    """The refusal is for a reason: the same stages, made to reshard behind its back, are off; others are not."""
    ranks = results(folder, 4)

    for name in ZERO_BUBBLE:
        assert max(rank["unrefused"][f"{name}-True"] for rank in ranks) > 1e-3, name
        assert max(rank["unrefused"][f"{name}-False"] for rank in ranks) < CLOSE, name


def test_a_stage_of_which_only_parts_are_sharded_is_refused(folder: Path) -> None:
    """torch treats a stage as FSDP's only if its root is."""
    for rank in results(folder, 4):
        kind, message = rank["data_ranks"]["rootless"]
        assert kind == "LayoutError"
        assert "call fully_shard on the stage as well" in message


def test_context_ranks_share_the_sequences_of_every_stage(folder: Path) -> None:
    """Micro-batches are filled up to a multiple of the ranks, and gradients add up over them."""
    for rank in results(folder, 4):
        for name, case in rank["context_ranks"].items():
            assert case["gradient"] < CLOSE, name
            assert case["columns"] < CLOSE, name


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_ranks_hold_every_stage_once(name: str, num_ranks: int) -> None:
    """Stage 0 on rank 0, the last where the schedule says, neighbours on one rank or on neighbouring ones."""
    num_virtual = 1 if name == "1F1B" else 2
    schedule = Schedule(name=name, num_ranks=num_ranks, num_virtual=num_virtual)

    stages = [schedule.stages(rank) for rank in range(num_ranks)]

    assert sorted(stage for held in stages for stage in held) == list(range(schedule.num_stages))
    assert 0 in stages[0]
    assert schedule.num_stages - 1 in stages[schedule.last_rank]


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [("1F1B", 1, 1), ("1F1B", 9, 9), ("ZBVZeroBubble", 1, 1), ("Interleaved1F1B", 3, 3), ("Interleaved1F1B", 9, 10)],
)
def test_as_few_micro_batches_are_filled_in_as_can_be(name: str, count: int, expected: int) -> None:
    """Each costs as much as a real one."""
    schedule = Schedule(name=name, num_ranks=4, num_virtual=1 if name == "1F1B" else 2)

    assert expected == schedule.num_microbatches(count)


def test_impossible_schedules_are_refused() -> None:
    """A name torch does not know, and stages it would not take."""
    with pytest.raises(WrongType, match="schedules are 1F1B, Interleaved1F1B"):
        Schedule(name="2F2B", num_ranks=2)
    with pytest.raises(LayoutError, match="1F1B was given 2 stages"):
        Schedule(name="1F1B", num_ranks=2, num_virtual=2)
    with pytest.raises(LayoutError, match="it takes 2"):
        Schedule(name="ZBVZeroBubble", num_ranks=2, num_virtual=1)
    with pytest.raises(LayoutError, match="at least 1"):
        Schedule(name="Interleaved1F1B", num_ranks=2, num_virtual=0)
