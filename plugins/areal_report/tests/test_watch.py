"""A run that goes wrong says so once, with what to try, and ends where `guard:` asks for it."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import TrainError, UnknownKey, WrongType
from areal_core.contract.ids import GroupId, TaskId
from areal_report.watch.judge import GuardStop, make_watch
from areal_report.watch.measures import MAX_NAMES, measures
from areal_report.watch.rules import rules

GOOD: dict[str, Any] = {
    "reward": 0.5,
    "sync_tensors": 10,
    "sync_unchanged": 0,
    "train/zero_advantage_groups": 0.5,
    "train/no_eos_ratio": 0.1,
    "train/entropy": 1.0,
    "train/clip_fraction": 0.05,
    "train/engine_gap": 0.005,
    "episode/agent/requests": 4.0,
    "episode/agent/restarted": 0.0,
}


class Run:
    """Steps judged one after another; `events` and `notes` are what was told."""

    def __init__(self, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.record: dict[str, Any] = {}
        self._step = 0
        self._judge = make_watch(options, self._tell, self.notes.append)

    def _tell(self, kind: str, **fields: Any) -> None:
        assert kind == "warning"
        self.events.append(fields)

    def steps(self, number: int, **odd: Any) -> Exception | None:
        ended = None
        for _ in range(number):
            self._step += 1
            self.record = {"step": self._step, **GOOD, **{name.replace("__", "/"): v for name, v in odd.items()}}
            ended = ended or self._judge(self.record, [])
        return ended


ODD = {
    "no_reward_signal": {"train__zero_advantage_groups": 1.0},
    "weights_unchanged": {"sync_unchanged": 10},
    "all_truncated": {"train__no_eos_ratio": 1.0},
    "entropy_below": {"train__entropy": 0.001},
    "clip_share_above": {"train__clip_fraction": 0.5},
    "engine_gap_above": {"train__engine_gap": 0.4},
    "restarts_above": {"episode__agent/restarted": 1.0},
}


@pytest.mark.parametrize("name", ODD)
def test_each_is_told_once_and_once_more_when_it_is_over(name: str) -> None:
    """However long it lasts; with name, step, value, threshold and what to try, in events, terminal and metrics."""
    run = Run()

    run.steps(5)
    assert not run.events and "warnings" not in run.record
    run.steps(9, **ODD[name])

    (event,) = run.events
    assert (event["name"], event["over"]) == (name, False)
    assert event["threshold"] > 0 and event["says"] and event["advice"]
    assert len(run.notes) == 1 and event["says"] in run.notes[0] and event["advice"] in run.notes[0]
    assert list(run.record["warnings"]) == [name]
    run.steps(5)
    assert [event["over"] for event in run.events] == [False, True]
    assert "warnings" not in run.record
    run.steps(9, **ODD[name])
    assert [event["over"] for event in run.events] == [False, True, False]


@pytest.mark.parametrize("name", ODD)
def test_a_single_odd_step_is_no_warning(name: str) -> None:
    """Noise is not told."""
    run = Run()
    for _ in range(20):
        run.steps(1, **ODD[name])
        run.steps(2)

    assert not run.events


def test_a_good_step_in_between_does_not_end_a_warning() -> None:
    """A number that sways around its threshold is told once."""
    run = Run()
    run.steps(5, train__entropy=0.001)
    for _ in range(10):
        run.steps(2)
        run.steps(1, train__entropy=0.001)

    assert len(run.events) == 1


def test_a_gap_that_grows_is_told_before_it_is_large() -> None:
    """Three times what it was at first; rounding that grew is none."""
    run, rounding = Run(), Run()
    for step in range(60):
        run.steps(1, train__engine_gap=0.01 + 0.001 * step)
        rounding.steps(1, train__engine_gap=1e-6 * (1 + step))

    assert [event["name"] for event in run.events] == ["engine_gap_growth"]
    assert not rounding.events


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("no_reward_signal", 7),
        ("weights_unchanged", 7),
        ("all_truncated", 7),
        ("entropy_below", 0.01),
        ("clip_share_above", 0.3),
        ("engine_gap_above", 0.3),
    ],
)
def test_a_guard_ends_the_run_with_a_named_error(name: str, guard: float) -> None:
    """After so many steps in a row and not before; without a guard a warning never does."""
    run = Run(**{name: guard}, patience=7)

    assert Run().steps(50, **ODD[name]) is None
    assert run.steps(6, **ODD[name]) is None
    ended = run.steps(1, **ODD[name])

    assert isinstance(ended, GuardStop) and isinstance(ended, TrainError)
    assert (ended.code, f"guard.{name}" in ended.what) == ("E603", True)
    assert "--resume" in ended.fix


def test_a_guard_works_where_its_warning_is_off() -> None:
    """They are two thresholds."""
    run = Run(entropy_below=0.01, warn={"entropy_below": 0.0})

    assert isinstance(run.steps(5, train__entropy=0.001), GuardStop)
    assert not run.events


def test_what_is_not_named_under_warn_keeps_its_default() -> None:
    """One threshold is changed at a time."""
    run = Run(warn={"entropy_below": 0.0})
    run.steps(9, train__entropy=0.001, train__clip_fraction=0.5)

    assert [event["name"] for event in run.events] == ["clip_share_above"]


def test_steps_without_a_number_say_nothing() -> None:
    """An objective without entropy, a run without fresh tokens, a skipped step's NaN."""
    run = Run(entropy_below=0.01)
    for missing in (None, float("nan")):
        assert run.steps(9, train__entropy=missing, train__engine_gap=missing) is None

    assert not run.events


def test_a_solved_task_is_told_as_such() -> None:
    """No signal because everything is solved has another remedy."""
    solved, hopeless = Run(), Run()
    solved.steps(5, train__zero_advantage_groups=1.0, train__groups_all_solved=1.0)
    hopeless.steps(5, train__zero_advantage_groups=1.0, train__groups_all_solved=0.0)

    assert "solved" in solved.events[0]["advice"] and "solved" not in hopeless.events[0]["advice"]


def test_a_misspelt_guard_is_refused() -> None:
    """Before a run, with the nearest key there is and all that are allowed."""
    with pytest.raises(UnknownKey, match=r"guard\.no_reward_singal") as refused:
        make_watch({"no_reward_singal": 3}, print, print)
    assert "did you mean 'guard.no_reward_signal'" in str(refused.value)
    assert all(rule.name in str(refused.value) for rule in rules())
    with pytest.raises(UnknownKey, match=r"guard\.warn\.entropy"):
        make_watch({"warn": {"entropy": 3}}, print, print)
    with pytest.raises(WrongType):
        make_watch({"clip_share_above": 2.0}, print, print)


def _episode(*rewards: float, lengths: tuple[int, ...] = (), **metrics: float) -> Episode:
    sizes = lengths or (1,) * len(rewards)
    trajectories = tuple(
        Trajectory(
            input_ids=torch.zeros(size + 1, dtype=torch.int64),
            loss_mask=torch.arange(size + 1) > 0,
            logprobs=torch.zeros(size + 1),
            versions=torch.where(torch.arange(size + 1) > 0, 0, -1).to(torch.int32),
            reward=reward,
            stop_reason=StopReason.STOP,
        )
        for reward, size in zip(rewards, sizes, strict=True)
    )
    return Episode(trajectories=trajectories, task_id=TaskId("t"), group_id=GroupId("g"), metrics=metrics)


def test_spreads_and_groups_that_teach_nothing_are_told() -> None:
    """One group solved by all, one by none, one by half, one of a single member."""
    groups = [
        [_episode(1.0), _episode(1.0, lengths=(3,))],
        [_episode(0.0), _episode(-1.0)],
        [_episode(0.0), _episode(1.0)],
        [_episode(0.5)],
    ]

    found = measures({}, groups)

    assert (found["train/groups_all_solved"], found["train/groups_none_solved"]) == (0.25, 0.25)
    assert found["train/groups_without_signal"] == pytest.approx(1 / 3), "of three groups with several members"
    assert (found["train/reward_min"], found["train/reward_max"]) == (-1.0, 1.0)
    assert found["train/reward_std"] == pytest.approx(statistics.pstdev([1, 1, 0, -1, 0, 1, 0.5]))
    assert (found["train/response_length_min"], found["train/response_length_max"]) == (1.0, 3.0)
    assert found["train/response_length_std"] == pytest.approx(statistics.pstdev([3, *[1] * 6]))


def test_a_step_has_the_metrics_its_episodes_brought() -> None:
    """Mean and spread of each by name, over those episodes that have it; parts of a reward are among them."""
    groups = [[_episode(1.0, exact=1.0, format=0.5), _episode(0.0, exact=0.0)], [_episode(1.0, exact=0.5)]]

    found = measures({}, groups)

    assert {name: value for name, value in found.items() if name.startswith("episode/")} == pytest.approx(
        {"episode/exact": 0.5, "episode/exact_std": (1 / 6) ** 0.5, "episode/format": 0.5, "episode/format_std": 0.0}
    )


def test_names_without_end_are_bounded() -> None:
    """A workflow that names its metrics after its data fills no memory and no tracker."""
    groups = [[_episode(1.0, **{f"row {number}": 1.0 for number in range(1000)})]]

    assert sum(name.startswith("episode/") for name in measures({}, groups)) == 2 * MAX_NAMES


def test_the_effective_sample_size_is_a_share() -> None:
    """1 where all tokens weigh alike; absent without ratios."""
    even, odd = (
        measures({"train/policy_ratio": mean, "train/policy_ratio_square": square}, [])
        for mean, square in ((1.0, 1.0), (0.875, 3.75 / 4))
    )

    assert even["train/effective_sample_size"] == 1.0
    assert odd["train/effective_sample_size"] == pytest.approx(3.5**2 / (4 * 3.75))
    assert measures({}, []) == {}


def test_every_step_says_how_many_tokens_a_second_went_by() -> None:
    """Over the window of the report, each count by its own clock; a resumed run waits for a second record."""

    def record(step: int) -> dict[str, Any]:
        counts = {"tokens_trained": 100 * step**2, "tokens_generated": 300 * step, "wall_s": 2.0 * step}
        return {"step": step, **counts, "infer_wall_s": 1.5 * step}

    steps = [record(step) for step in range(1, 13)]
    judge = make_watch({}, lambda *_, **__: None, lambda _: None)
    for step in steps:
        judge(step, ())
    (resumed,) = [record(7)]
    make_watch({}, lambda *_, **__: None, lambda _: None)(resumed, ())

    assert [step["tokens_per_s/generated"] for step in steps] == [200.0] * 12
    assert [steps[n]["tokens_per_s/trained"] for n in (0, 9, 11)] == [50.0, 500.0, 100 * (12**2 - 2**2) / 20]
    assert not [name for name in resumed if name.startswith("tokens_per_s")]
