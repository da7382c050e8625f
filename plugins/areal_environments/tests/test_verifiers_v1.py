"""Tasksets of the real library verifiers from 0.4 on, made in files here, played against the endpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from areal_core.contract.errors import DatasetError, EpisodeFailed
from areal_environments import verifiers
from areal_environments.testing.scripted import episode, episodes
from areal_environments.verifiers import VerifiersConfig

pytestmark = pytest.mark.environments

TASKSET = """
import verifiers.v1 as vf


class SumTask(vf.Task):
    @vf.reward
    async def right(self, trace):
        return float(self.data.answer in (trace.messages[-1].content or ""))

    @vf.metric
    async def length(self, trace):
        return float(len(trace.messages[-1].content or ""))


class SumData(vf.TaskData):
    answer: str


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for n in range(3):
            yield SumTask(SumData(prompt=f"{n} + {n}?", system_prompt="Add.", answer=str(2 * n)), self.config.task)


__all__ = ["Sums"]
"""
CHAT = {"agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}


def written(tmp_path: Path, text: str, name: str) -> str:
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return str(path)


def test_a_taskset_is_played_by_its_harness(tmp_path: Path) -> None:
    """The harness is a program of its own between environment and endpoint; rewards and metrics have their names."""
    options = verifiers.VerifiersRows(environment=written(tmp_path, TASKSET, "sums_env"), arguments=CHAT, size=2)
    rows = verifiers.rows(options)
    cases = [(rows[1], ["it is 2"]), (rows[0], ["it is 2"])]
    (right, text), (wrong, _) = episodes(verifiers.workflow(VerifiersConfig()), cases)

    assert [row["prompt"] for row in rows] == ["0 + 0?", "1 + 1?"]
    assert text.endswith("[system]Add.<eos>[user]1 + 1?<eos>[assistant]<it is 2<eos>>")
    assert [each.trajectories[0].reward for each in (right, wrong)] == [1.0, 0.0]
    assert (right.metrics["right"], right.metrics["length"]) == (1.0, 7.0)
    assert not [name for name in os.environ if name.startswith("AREAL_EPISODE")]


def test_a_reward_function_that_raises_fails_the_episode(tmp_path: Path) -> None:
    """As anything does that the library says is not ok."""
    broken = TASKSET.replace("float(self.data.answer in", "float(self.data.nothing in")
    (row, *_) = verifiers.rows(
        verifiers.VerifiersRows(environment=written(tmp_path, broken, "broken_sums"), arguments=CHAT)
    )

    with pytest.raises(EpisodeFailed, match="the rollout of the environment failed") as caught:
        episode(verifiers.workflow(VerifiersConfig()), row, ["it is 0"])
    assert "nothing" in str(caught.value.why)


def test_an_answer_without_text_is_an_answer(tmp_path: Path) -> None:
    """It is scored, and trained on."""
    (row, *_) = verifiers.rows(
        verifiers.VerifiersRows(environment=written(tmp_path, TASKSET, "empty_sums"), arguments=CHAT)
    )
    made, text = episode(verifiers.workflow(VerifiersConfig()), row, [""])

    assert text.endswith("[assistant]<<eos>>") and made.trajectories[0].reward == 0.0


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (TASKSET, {"split": "eval"}, "Sums has no split eval"),
        (TASKSET.replace("    def load", "    INFINITE = True\n\n    def load"), {}, "Sums has no end"),
    ],
)
def test_rows_that_a_taskset_has_not_are_refused(tmp_path: Path, text: str, options: dict[str, str], says: str) -> None:
    """Rows to train on are never taken for others to evaluate on."""
    name = written(tmp_path, text, f"refused_sums_{len(text)}")
    with pytest.raises(DatasetError, match=says):
        verifiers.rows(verifiers.VerifiersRows(environment=name, arguments=CHAT, **options))
