"""How many episodes look together is counted by SQLite, and one episode is read alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.workflow import RewardResult
from areal_core.plugins.episodes import EndedEpisode, Ending, Fate
from areal_episodes.reader import Filter, Reader
from areal_episodes.schema import FILE
from areal_episodes.spread import Bar, Measure, Spread
from areal_episodes.store import Store


class Letters:
    """A tokenizer whose token n is the letter number n."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError


def many(folder: Path, count: int = 8) -> None:
    """Write groups of one; group n ends in step n + 1, has n + 1 letters after `ab`, and reward n / 4."""
    store = Store(folder / FILE, keep=1000, tokenizer=Letters(), tell=lambda kind, **fields: None)
    for index in range(count):
        text = "ab" + "x" * (index + 1)
        own = torch.arange(len(text)) >= 2
        made = Trajectory(
            input_ids=torch.tensor([ord(letter) for letter in text]),
            loss_mask=own,
            logprobs=torch.where(own, -0.5, 0.0),
            versions=torch.where(own, max(0, index - 2), -1).to(torch.int32),
            reward=index / 4,
            stop_reason=StopReason.STOP,
        )
        store.ended(
            EndedEpisode(
                ending=Ending.FINISHED,
                task_id=f"train/0/{index}",
                task_index=index,
                attempt=0,
                member=0,
                version=index,
                row={"prompt": "ab"},
                trajectories=[made],
                reward=RewardResult(value=index / 4),
                started=100.0 + index,
                seconds=1.0,
                replica=f"rollout/{index % 2}",
            )
        )
        store.settled(index, 0, Fate.TRAINED, index + 1)
    store.close()


def test_histograms_count_every_episode_once(tmp_path: Path) -> None:
    """Whole numbers get whole bars; a range of steps leaves the others out; one value is one bar."""
    many(tmp_path)
    with Spread(tmp_path) as spread:
        lengths = spread.histogram(Measure.LENGTH)
        wide = spread.histogram(Measure.LENGTH, bars=3)
        staleness = spread.histogram(Measure.STALENESS, Filter(steps=(3, 8)))
        rewards = spread.histogram(Measure.REWARD)
        none = spread.histogram(Measure.REWARD, Filter(steps=(90, 99)))
        last = spread.last_step()

    assert lengths == [Bar(float(n), float(n + 1), 1) for n in range(1, 9)]
    assert [(bar.low, bar.high, bar.count) for bar in wide] == [(1.0, 4.0, 3), (4.0, 7.0, 3), (7.0, 10.0, 2)]
    assert staleness == [Bar(2.0, 3.0, 6)]
    assert sum(bar.count for bar in rewards) == 8
    assert (rewards[0].low, rewards[-1].high) == (0.0, pytest.approx(1.75))
    assert (none, last) == ([], 8)


def test_a_histogram_of_numbers_ends_with_the_largest(tmp_path: Path) -> None:
    """The largest value lies in the last bar, and is not lost behind it."""
    many(tmp_path, 5)

    with Spread(tmp_path) as spread:
        bars = spread.histogram(Measure.REWARD, bars=4)

    assert [(bar.low, bar.count) for bar in bars] == [(0.0, 1), (0.25, 1), (0.5, 1), (0.75, 2)]


def test_load_of_replicas_is_averaged_over_parts_of_a_time(tmp_path: Path) -> None:
    """An episode counts for the share of a part it was in flight; outside of the time nothing counts."""
    many(tmp_path, 4)  # rollout/0 from 100 to 101 and 102 to 103, rollout/1 from 101 to 102 and 103 to 104
    with Spread(tmp_path) as spread:
        busy = spread.busy(100.5, 104.5, bins=4)
        none = spread.busy(200.0, 201.0, bins=4)

    assert busy == {"rollout/0": [0.5, 0.5, 0.5, 0.0], "rollout/1": [0.5, 0.5, 0.5, 0.5]}
    assert none == {}


def test_choices_are_what_there_is(tmp_path: Path) -> None:
    """For menus; a column with many values is refused."""
    many(tmp_path, 2)
    with Spread(tmp_path) as spread:
        assert (spread.choices("fate"), spread.choices("kind")) == (["trained"], ["train"])
        with pytest.raises(ValueError, match="ask for fate"):
            spread.choices("text")


def test_one_episode_and_its_excerpts_are_read_alone(tmp_path: Path) -> None:
    """Cut where they are read, so that a long answer costs no memory; filters by status and group."""
    many(tmp_path, 3)
    with Reader(tmp_path) as reader:
        facts = next(iter(reader.facts(Filter(group=(2, 0), status="ok"))))
        assert reader.one(facts["id"]) == facts
        assert reader.excerpts(facts["id"], 2) == ("ab", "xx")
        assert list(reader.facts(Filter(status="raised"))) == []
        with pytest.raises(KeyError):
            reader.one(99)
