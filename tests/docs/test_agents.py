"""The page about agents: every file on it is run as it stands, every option and path of it is one there is."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from fastapi.routing import APIRoute
from tests.end_to_end import one_process

from areal_agentic.user_function import user_function
from areal_agents.config import AgentConfig
from areal_agents.paths import Paths
from areal_agents.workflow import AgentWorkflow
from areal_core.config.load import load_config
from areal_core.observe.jsonl import read_lines
from areal_environments.testing.scripted import Answers, Played, call, episode, played
from areal_tasks.tiny import make_spell_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/agents.md").read_text()
_FENCE = re.compile(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(_FENCE.findall(PAGE))
ROW = {"prompt": "1 + 2?", "answer": "3"}


pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""Agents of the page keep one client for all episodes, which ends with their process; here it ends with the test."""


@pytest.fixture(autouse=True)
def clients_end() -> Iterator[None]:
    """Have what agents left collected before other tests."""
    yield
    gc.collect()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder that the page's files lie in and a run is started from."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("areal_function_"):
            del sys.modules[name]
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # agents of the page keep their clients for as long as their module is there


def play(file: Path, row: dict[str, Any], answers: Answers) -> Played:
    """Have the `run` of a file play a row with a policy that says so."""
    return played(user_function(f"{file}:run", what="what", fix="fix"), row, answers)


def lines(text: str) -> list[str]:
    """Return code without the docstring of its module, comments and the shell's first line."""
    if text.startswith('"""'):
        text = "\n".join(text.splitlines()[ast.parse(text).body[0].end_lineno :])
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(("example", "file"), [("speller.py", "my_agent.py"), ("harness.sh", "harness.sh")])
def test_the_examples_are_the_files_of_the_page(example: str, file: str) -> None:
    """Those that whole runs are tested with."""
    assert lines((ROOT / "examples/agents" / example).read_text()) == lines(FILES[file])


def test_the_agent_of_ten_minutes_trains(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, evaluation included, on the model of the quickstart."""
    one_process.settle_here(monkeypatch)
    model = make_spell_model(here / "model", 1)
    held_out = "evaluation={every_steps: 2, max_prompts: 4, data: {name: spell, options: {split: held}}}"
    one_process.train_here(here / "run", model, "steps=2", "rollout.agent=my_agent.py:run", held_out)

    steps = list(read_lines(here / "run/metrics.jsonl"))
    assert len(steps) == 2 and "eval_reward" in steps[-1]
    assert all(1.0 <= step["episode/agent/requests"] <= 2.0 for step in steps)


def test_rows_of_a_file_are_the_agents(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data and the agent of the run file, which tells the reward, on a small model."""
    one_process.settle_here(monkeypatch)
    of_page = yaml.safe_load(FILES["agent.yaml"])
    small = yaml.safe_load(one_process.FILE.read_text())
    small["rollout"].pop("reward", None)
    small["rollout"]["agent"], small["data"] = of_page["rollout"]["agent"], of_page["data"]
    (here / "small.yaml").write_text(yaml.safe_dump(small))
    monkeypatch.setattr(one_process, "FILE", here / "small.yaml")
    one_process.train_here(here / "run", make_spell_model(here / "model", 1), "steps=1")

    assert len(list(read_lines(here / "run/metrics.jsonl"))) == 1


@pytest.mark.slow
def test_the_test_of_the_page_passes(here: Path) -> None:
    """Beside the file that it tests."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_agent.py"]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=120, check=False)

    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "reward", "parts"), [("parts.py", 1.1, {"right": 1.0, "short": 1.0}), ("by_call.py", 1.0, {})]
)
def test_a_reward_is_told_as_the_page_says(here: Path, name: str, reward: float, parts: dict[str, float]) -> None:
    """With parts, or by a call."""
    done = play(here / name, ROW, ["It is 3."])

    assert done.reward == pytest.approx(reward)
    assert parts.items() <= done.metrics.items()


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("with_openai_agents.py", [call("add", a=1, b=2), "It is 3."]),
        ("with_langchain.py", [call("add", a=1, b=2), "It is 3."]),
        ("with_anthropic.py", ["It is 3."]),
    ],
)
def test_a_framework_of_the_page_plays(here: Path, name: str, answers: Sequence[str]) -> None:
    """All it asked is one trajectory."""
    done = play(here / name, ROW, answers)

    assert (done.reward, done.num_trajectories, done.metrics["agent/requests"]) == (1.0, 1, len(answers))


def test_helpers_of_an_agent_share_its_reward(here: Path) -> None:
    """Three drafts and what came of them."""
    done = play(here / "helpers.py", ROW, lambda prompt, number: "3" if "Which" in prompt else "4")

    assert (done.reward, done.num_trajectories) == (1.0, 4)
    assert "Which is right? 4 / 4 / 4<eos>" in done.text


def test_a_command_of_the_page_plays(here: Path) -> None:
    """With the options of the page; what it wrote is kept."""
    options = load_config(here / "command.yaml").rollout.workflow.options
    made, text = episode(AgentWorkflow(AgentConfig(**options)), ROW, ["It is 3."])

    assert made.trajectories[0].reward == 1.0 and text.endswith("<It is 3.<eos>>")
    assert (here / "agents.log").read_text().startswith("==== train/0/0: ended with exit code 0\n")


@pytest.mark.slow
def test_the_harness_of_the_page_plays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real mini-swe-agent."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    options = load_config(here / "harness.yaml").rollout.workflow.options
    row = {"prompt": "Write 42 into answer.txt.", "check": "grep -qx 42 answer.txt"}
    answers = [
        call("bash", command="echo 42 > answer.txt"),
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ]
    made, text = episode(AgentWorkflow(AgentConfig(**options)), row, answers)

    assert made.trajectories[0].reward == 1.0 and "Write 42 into answer.txt." in text


def test_the_options_are_those_there_are() -> None:
    """With their defaults."""
    told = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", PAGE.partition("\n## Options\n")[2], re.MULTILINE))
    known = {each.name: each.default for each in attrs.fields(AgentConfig)}

    assert told.keys() == known.keys()
    for name, text in told.items():
        default = known[name]
        empty = default is None or isinstance(default, attrs.Factory) or default in ("", ())  # type: ignore[arg-type]
        assert text.strip() == ("" if empty else str(default).lower()), name


def test_the_paths_are_those_there_are() -> None:
    """And none that is not there."""
    routes = [each for each in Paths(1.0).app().routes if isinstance(each, APIRoute)]
    told = set(re.findall(r"^\| `((?:GET|POST) /[^`]+)` \|", PAGE, re.MULTILINE))

    assert told == {f"{method} {each.path.replace(':path', '')}" for each in routes for method in each.methods}
