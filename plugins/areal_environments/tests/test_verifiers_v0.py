"""Environments of the real library verifiers up to 0.3, made in files here, played against the endpoint."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from areal_core.contract.errors import ConfigError, DatasetError, EpisodeFailed
from areal_core.plugins.registry import Registry
from areal_environments import verifiers
from areal_environments.testing.scripted import call, episode, episodes
from areal_environments.verifiers import VerifiersConfig

pytestmark = pytest.mark.environments

SINGLE = """
import verifiers as vf
from datasets import Dataset


def right(completion, answer, **kwargs):
    return float(answer in completion[-1]["content"])


def load_environment(count=3):
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(count)]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), system_prompt="Add.", rubric=vf.Rubric(funcs=[right])
    )
"""
MULTI = """
import verifiers as vf
from datasets import Dataset


class Guess(vf.MultiTurnEnv):
    @vf.stop
    async def found(self, state):
        return bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1].content == state["answer"]

    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content="too low" if messages[-1].content < state["answer"] else "too high")]


async def turns(state):
    return 1.0 / len(state["trajectory"])


def load_environment():
    return Guess(dataset=Dataset.from_list([{"question": "Guess.", "answer": "5"}]),
                 rubric=vf.Rubric(funcs=[turns]), max_turns=4)
"""
TOOLS = '''
import verifiers as vf
from datasets import Dataset


async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


async def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return vf.ToolEnv(tools=[double], max_turns=3, rubric=vf.Rubric(funcs=[right]),
                      dataset=Dataset.from_list([{"question": "Double 21.", "answer": "42"}]))
'''


def written(tmp_path: Path, text: str, name: str) -> str:
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return str(path)


def test_a_single_turn_is_scored_by_the_rubric(tmp_path: Path) -> None:
    """Rows are the environment's, the answer alone is trained on, the rubric's parts are metrics."""
    name = written(tmp_path, SINGLE, "single_env") + ":load_environment"
    rows = verifiers.rows(verifiers.VerifiersRows(environment=name, arguments={"count": 2}))
    cases = [(rows[1], ["it is 2"]), (rows[1], ["it is 3"])]
    (right, text), (wrong, _) = episodes(verifiers.workflow(VerifiersConfig()), cases)

    assert len(rows) == 2
    assert text == "[system]Add.<eos>[user]1 + 1?<eos>[assistant]<it is 2<eos>>"
    assert [each.trajectories[0].reward for each in (right, wrong)] == [1.0, 0.0]
    assert right.metrics["right"] == 1.0


def test_turns_of_a_conversation_are_one_trajectory(tmp_path: Path) -> None:
    """The environment's words are context, each answer is trained on, the rubric sees the whole rollout."""
    (row,) = verifiers.rows(verifiers.VerifiersRows(environment=written(tmp_path, MULTI, "multi_env")))
    made, text = episode(verifiers.workflow(VerifiersConfig()), row, ["3", "8", "5"])

    assert len(made.trajectories) == 1 and made.metrics["agent/requests"] == 3.0
    assert text.startswith("[user]Guess.<eos>[assistant]<3<eos>>[user]too low<eos>[assistant]<8<eos>>[user]too high")
    assert made.trajectories[0].reward == pytest.approx(1 / 3)


def test_a_tool_of_the_environment_is_called(tmp_path: Path) -> None:
    """The policy sees what the tool returns and goes on."""
    (row,) = verifiers.rows(verifiers.VerifiersRows(environment=written(tmp_path, TOOLS, "tool_env")))
    made, text = episode(verifiers.workflow(VerifiersConfig()), row, [call("double", x=21), "42"])

    assert "[tool]42<eos>" in text and text.endswith("[assistant]<42<eos>>")
    assert (made.trajectories[-1].reward, made.metrics["double_calls"]) == (1.0, 1.0)


def test_an_environment_takes_no_signals(tmp_path: Path) -> None:
    """The handlers of the run stay, though the library sets its own."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    verifiers.rows(verifiers.VerifiersRows(environment=written(tmp_path, SINGLE, "signal_env")))

    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_a_rollout_that_fails_is_no_reward_of_zero(tmp_path: Path) -> None:
    """An environment that raises fails the episode."""
    broken = MULTI.replace("return [vf.UserMessage", 'raise vf.InfraError("the world ended")\n        return [vf.User')
    (row,) = verifiers.rows(verifiers.VerifiersRows(environment=written(tmp_path, broken, "broken_env")))

    with pytest.raises(EpisodeFailed, match="the rollout of the environment failed") as caught:
        episode(verifiers.workflow(VerifiersConfig()), row, ["3", "5"])
    assert "the world ended" in str(caught.value.why)


GROUP = """
def load_environment():
    return vf.EnvGroup(envs=[Guess(dataset=Dataset.from_list([{"question": "Guess.", "answer": "5"}]),
                             rubric=vf.RubricGroup([vf.Rubric(funcs=[turns])]), max_turns=4)], env_names=["guess"])
"""


@pytest.mark.parametrize("text", [MULTI, MULTI.partition("def load_environment")[0] + GROUP], ids=["alone", "group"])
def test_a_reward_function_that_raises_is_no_reward_of_zero(tmp_path: Path, text: str) -> None:
    """The library says 0 there; that has to be asked for. Its name and its line are told."""
    broken = text.replace("return 1.0 / len", "return 1.0 / 0 * len")
    name = written(tmp_path, broken, f"broken_rubric_{len(text)}")
    (row,) = verifiers.rows(verifiers.VerifiersRows(environment=name))

    with pytest.raises(EpisodeFailed, match="reward function turns raised") as caught:
        episode(verifiers.workflow(VerifiersConfig()), row, ["3", "5"])
    assert "ZeroDivisionError" in str(caught.value.why) and "return 1.0 / 0" in str(caught.value.why)

    made, _ = episode(verifiers.workflow(VerifiersConfig(raised_is_zero=True)), row, ["3", "5"])
    assert made.trajectories[0].reward == 0.0


def test_an_answer_without_text_is_an_answer(tmp_path: Path) -> None:
    """The rubric says what it is worth, and it is trained on: a policy has to unlearn it."""
    name = written(tmp_path, SINGLE, "empty_env")
    (row, *_) = verifiers.rows(verifiers.VerifiersRows(environment=name))
    made, text = episode(verifiers.workflow(VerifiersConfig()), row, [""])

    assert text.endswith("[assistant]<<eos>>") and made.trajectories[0].reward == 0.0


def test_a_rubric_of_groups_is_refused(tmp_path: Path) -> None:
    """Before anything is played."""
    text = MULTI.replace(
        "async def turns(state):\n    return 1.0 / len(state[",
        "async def turns(states):\n    return (1.0 / len(states[0][",
    )
    with pytest.raises(ConfigError, match="reward functions of groups"):
        verifiers.rows(
            verifiers.VerifiersRows(
                environment=written(
                    tmp_path, text.replace('["trajectory"])\n\n\ndef', '["trajectory"]),)\n\n\ndef'), "groups_env"
                )
            )
        )


def test_rows_to_evaluate_on_are_no_others(tmp_path: Path) -> None:
    """The library would take those to train on where there are none."""
    with pytest.raises(DatasetError, match="no rows of the split eval"):
        verifiers.rows(verifiers.VerifiersRows(environment=written(tmp_path, SINGLE, "split_env"), split="eval"))


def test_several_environments_are_a_mixture(tmp_path: Path) -> None:
    """Each row is played by the environment that it is of."""
    names = [written(tmp_path, text, f"mixed_{number}") for number, text in enumerate((SINGLE, MULTI))]
    sets = [{"name": "verifiers", "options": {"environment": name, "size": 1}} for name in names]
    rows: Any = Registry().build("dataset", "mixture", {"sets": sets, "size": 20})
    found = {row["environment"]["name"]: row for row in rows}
    cases = [(found[names[0]], ["it is 0"]), (found[names[1]], ["3", "5"])]

    made = episodes(verifiers.workflow(VerifiersConfig()), cases)
    assert [each.trajectories[0].reward for each, _ in made] == [1.0, 0.5]


def test_an_installed_environment_is_named_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its owner and its version, as the hub of environments writes them."""
    written(tmp_path, SINGLE, "installed_env")
    monkeypatch.syspath_prepend(str(tmp_path))

    for name in ("installed-env", "somebody/installed-env@1.2"):
        assert len(verifiers.rows(verifiers.VerifiersRows(environment=name))) == 3
