"""Task folders are done in real sandboxes of this machine and judged by their own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_agentic.sandbox import SandboxError
from areal_core.contract.errors import ConfigError, DatasetError, EpisodeFailed
from areal_environments.harbor import HarborConfig, HarborRows, rows, workflow
from areal_environments.task_sandbox import rewarded
from areal_environments.testing.scripted import call, episode, episodes

from .tasks import TOML, harbor_task, terminal_bench_task

GREET = call("run", command="cat notes.txt > greeting; cat greeting; echo oh >&2; exit 3")


def test_a_task_of_harbor_is_worth_what_its_tests_write(tmp_path: Path) -> None:
    """The policy sees what commands print, its files are tested, named rewards are metrics; tests come afterwards."""
    (row,) = rows(HarborRows(path=str(harbor_task(tmp_path))))
    peeks = call("run", command='ls "$TEST_DIR"')
    (right, text), (wrong, other) = episodes(workflow(HarborConfig()), [(row, [GREET, "done"]), (row, [peeks, "done"])])

    assert row["prompt"] == "Write hello to the file greeting.\n"
    assert "[tool]hello\noh\n[exit code 3]<eos>[assistant]<done<eos>>" in text
    assert "No such file" in other
    assert (right.trajectories[-1].reward, right.metrics["files"], right.metrics["commands"]) == (1.0, 2.0, 1.0)
    assert (wrong.trajectories[-1].reward, wrong.metrics["files"]) == (0.0, 1.0)


def test_a_task_of_terminal_bench_is_worth_one_if_all_its_tests_pass(tmp_path: Path) -> None:
    """As pytest's summary says; the share that passed is a metric. Commands may be blocks of an answer."""
    (row,) = rows(HarborRows(path=str(terminal_bench_task(tmp_path))))
    script = ["I write it.\n```sh\necho hello > greeting\n```", "done"]
    config = HarborConfig(commands="block")
    (right, text), (wrong, _) = episodes(workflow(config), [(row, script), (row, ["done"])])

    assert "[user][exit code 0]<eos>[assistant]<done<eos>>" in text
    assert (right.trajectories[-1].reward, right.metrics["tests/passed"]) == (1.0, 1.0)
    assert (wrong.trajectories[-1].reward, wrong.metrics["tests/passed"]) == (0.0, 0.5)


@pytest.mark.parametrize(("command", "says"), [("a\0b", "NUL"), ("\ud800", "no text"), ("x" * 200_000, "longer than")])
def test_what_is_no_command_is_told_to_the_policy(tmp_path: Path, command: str, says: str) -> None:
    """The sandbox would be blamed for it, and the episode lost."""
    (row,) = rows(HarborRows(path=str(harbor_task(tmp_path))))
    made, text = episode(workflow(HarborConfig()), row, [call("run", command=command), "done"])

    assert says in text and "[exit code 126]" in text and made.trajectories[-1].reward == 0.0


def test_what_the_policy_leaves_where_tests_are_is_gone(tmp_path: Path) -> None:
    """Neither a reward of its own nor a file beside the tests counts."""
    (row,) = rows(HarborRows(path=str(harbor_task(tmp_path, test='ls "$TEST_DIR" >&2; test -e "$TEST_DIR/sly"'))))
    cheats = call("run", command='mkdir -p "$TEST_DIR" "$LOGS_DIR/verifier"; touch "$TEST_DIR/sly"; '
                  'echo 1 > "$LOGS_DIR/verifier/reward.txt"')  # fmt: skip

    with pytest.raises(EpisodeFailed, match="gave no reward") as caught:
        episode(workflow(HarborConfig()), row, [cheats, "done"])
    assert "test.sh" in str(caught.value.why) and "sly" not in str(caught.value.why)


def test_tests_that_do_not_end_have_failed(tmp_path: Path) -> None:
    """That is what the policy's work did to them."""
    toml = TOML.replace("timeout_sec = 700.0", "timeout_sec = 1.0")
    (row,) = rows(HarborRows(path=str(harbor_task(tmp_path, test="sleep 60", toml=toml))))
    made, _ = episode(workflow(HarborConfig()), row, ["done"])

    assert (made.trajectories[0].reward, made.metrics["tests/timeout"]) == (0.0, 1.0)


def test_tests_that_say_nothing_fail_the_episode(tmp_path: Path) -> None:
    """A task that is broken is no reward of zero."""
    for task in (harbor_task(tmp_path, "a", test="exit 7"), terminal_bench_task(tmp_path, "b", test="exit 7")):
        (row,) = rows(HarborRows(path=str(task)))
        with pytest.raises(EpisodeFailed, match="gave no reward"):
            episode(workflow(HarborConfig()), row, ["done"])


def test_an_agent_that_is_not_done_in_time_is_tested_as_it_is(tmp_path: Path) -> None:
    """As Harbor does; the metric in_time tells."""
    toml = TOML.replace("timeout_sec = 900.0", "timeout_sec = 1.0")
    task = harbor_task(tmp_path, toml=toml)
    (task / "environment" / "greeting").write_text("hello")  # a second may be too short for a command of the policy
    (row,) = rows(HarborRows(path=str(task)))
    made, _ = episode(workflow(HarborConfig(command_timeout_s=600.0)), row, [call("run", command="sleep 600"), "done"])

    assert (made.trajectories[-1].reward, made.metrics["in_time"]) == (1.0, 0.0)


def test_an_agent_of_your_own_runs_commands_in_the_sandbox(tmp_path: Path) -> None:
    """It is given a function for them, and talks to the policy as it likes."""
    agent = tmp_path / "own_agent.py"
    agent.write_text(
        "import openai\n"
        "async def run(row, base_url, api_key, run_command):\n"
        "    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:\n"
        "        messages = [{'role': 'user', 'content': row['prompt']}]\n"
        "        answer = await client.chat.completions.create(model='policy', messages=messages)\n"
        "    assert (await run_command(answer.choices[0].message.content)).ok\n"
    )
    (row,) = rows(HarborRows(path=str(harbor_task(tmp_path))))
    made, _ = episode(workflow(HarborConfig(agent=f"{agent}:run")), row, ["echo hello > greeting"])

    assert (made.trajectories[0].reward, made.metrics["commands"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "defines no 'run'"),
        ("def run(row, base_url, api_key, run_command): pass", "a plain function"),
        ("async def run(row): pass", "is not called with row"),
        ("1 / 0\nasync def run(row, base_url, api_key, run_command): pass", "ZeroDivisionError"),
    ],
)
def test_what_is_no_agent_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Before a worker starts."""
    agent = tmp_path / f"no_agent_{len(text)}.py"
    agent.write_text(text)

    with pytest.raises(ConfigError, match="is no agent") as caught:
        workflow(HarborConfig(agent=f"{agent}:run"))
    assert says in str(caught.value.why) and "run_command" in str(caught.value.fix)


def test_images_are_named_and_providers_without_images_refuse(tmp_path: Path) -> None:
    """The first error says how to build one; the second is the provider's."""
    (row,) = rows(HarborRows(path=str(harbor_task(tmp_path, image=True))))

    with pytest.raises(SandboxError, match="no image is named") as caught:
        episode(workflow(HarborConfig()), row, ["done"])
    assert "docker build -t tasks/greeting" in str(caught.value.fix)
    with pytest.raises(SandboxError, match="there is no image 'tasks/greeting'"):
        episode(workflow(HarborConfig(image="tasks/{name}")), row, ["done"])


def test_folders_are_chosen_by_name(tmp_path: Path) -> None:
    """Both formats side by side, in the order of their names."""
    harbor_task(tmp_path, "b-one"), terminal_bench_task(tmp_path, "a-two"), harbor_task(tmp_path, "b-three")
    chosen = rows(HarborRows(path=str(tmp_path), include=("a-*", "b-*"), exclude=("b-th*",)))

    assert [Path(row["task_folder"]).name for row in chosen] == ["a-two", "b-one"]
    for options in ({"path": str(tmp_path / "none")}, {"path": str(tmp_path), "include": ("c-*",)}):
        with pytest.raises(DatasetError, match="holds no task folders"):
            rows(HarborRows(**options))


@pytest.mark.parametrize(
    ("told", "value", "parts"),
    [(0.5, 0.5, {}), ({"reward": 1, "style": 0.25}, 1.0, {"style": 0.25}), ({"accuracy": 0.75}, 0.75, {})],
)
def test_a_reward_is_a_number_or_named_ones(told: object, value: float, parts: dict[str, float]) -> None:
    """One of them is called reward, or it is alone."""
    result = rewarded(told)

    assert (result.value, result.components) == (value, parts)


@pytest.mark.parametrize("told", ["1", {"a": 1, "b": 2}, {}, float("nan"), {"reward": "1"}, [1], None])
def test_what_is_no_reward_is_refused(told: object) -> None:
    """Rather than taken for zero."""
    with pytest.raises(ValueError):
        rewarded(told)
