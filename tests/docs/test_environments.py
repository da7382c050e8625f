"""The pages on environments: what they show is played, tested and trained on. Packages that cannot live here are asked
by the Pythons that `make test-environments` makes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml
from tests.end_to_end.one_process import OneProcess, Silent

from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import EngineMissing
from areal_core.loop.run import Run
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import default_registry
from areal_environments.testing.packages import interpreter
from areal_tasks.tiny import make_spell_model
from areal_tasks.tiny_chat import make_chat_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/environments"
TESTS = ROOT / "plugins/areal_environments/tests"
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = {
    "name": "page",
    "seed": 1,
    "steps": 2,
    "rollout": {
        "backend": "reference:d1",
        "prompts_per_step": 2,
        "group_size": 2,
        "max_staleness": 1,
        "sampling": {"max_new_tokens": 8},
    },
    "actor": {"backend": "reference:d1"},
    "evaluation": {"every_steps": 1, "max_prompts": 2},
}
"""What a page's run becomes, so that it takes seconds."""
Tree = Mapping[str, Any]  # Any: yaml, JSON


def blocks(page: str, kind: str, of: str = "") -> list[tuple[str, str]]:
    """Return (title, text) of a page's fenced blocks, or of one of its sections."""
    text = (ROOT / "docs/how-to" / page).read_text()
    if of:
        text = re.split(r"^## ", text.partition(f"\n## {of}\n")[2], flags=re.MULTILINE)[0]
    return [(title, body) for found, title, body in _FENCE.findall(text) if found == kind]


def merged(one: Tree, other: Tree) -> dict[str, Any]:
    """Return both; `other` wins."""
    both = {name: merged(one[name], other[name]) for name in one.keys() & other.keys() if isinstance(one[name], dict)}
    return {**one, **other, **both}


def run_file(folder: Path, text: str, more: Tree | None = None, *, chat: bool = False) -> Path:
    """Write a page's run file, made small, with a tiny model beside it; it evaluates on rows of its own or the same."""
    make = make_chat_model if chat else make_spell_model
    model = {"model": {"path": str(make(folder / "model", 1))}, "out": str(folder / "run")}
    whole = merged(merged(merged(yaml.safe_load(text), deepcopy(SMALL)), model), more or {})
    whole["evaluation"].setdefault("data", whole["data"])
    (folder / "page.yaml").write_text(yaml.safe_dump(whole))
    return folder / "page.yaml"


def trained(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run that trained and evaluated, and in which no episode failed."""
    steps = list(read_lines(folder / "run" / "metrics.jsonl"))
    events = list(read_lines(folder / "run" / "events.jsonl"))
    assert [event for event in events if event["kind"] == "group_failed"] == []
    assert [event["status"] for event in events if event["kind"] == "run_ended"] == ["finished"]
    assert len(steps) == 2 and all("eval_reward" in step for step in steps)
    return steps


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that a page's files lie in and a run is started from."""
    monkeypatch.chdir(tmp_path)
    for path in EXAMPLES.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run_here(monkeypatch: pytest.MonkeyPatch, file: Path, overrides: Sequence[str] = ()) -> None:
    """Train with every worker in this process."""
    monkeypatch.setattr("areal_core.loop.run.make_scheduler", lambda config, registry, logs: OneProcess())
    registry = default_registry()
    config = load_config(file, overrides)
    for each in config.imports:
        registry.add_file(Path(each))
    run = Run(make_plan(config, registry, {}), registry, view=Silent(), stop=asyncio.Event())
    asyncio.run(run.execute())


def train_here(folder: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> list[dict[str, Any]]:
    """Train a page's run; return its metrics."""
    run_here(monkeypatch, file)
    return trained(folder)


def train_by(python: str, folder: Path, file: Path) -> list[dict[str, Any]]:
    """Train by another Python, `areal train` as a user starts it."""
    words = [python, "-m", "areal_core.cli.main", "train", str(file)]
    beside = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}  # verifiers asks for uv
    done = subprocess.run(words, cwd=folder, env=beside, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return trained(folder)


# ------------------------------------------------------------------------------------------------ one's own


@pytest.mark.parametrize("name", ["letters.py", "safe.py"])
def test_an_environment_of_the_page_is_the_example(name: str) -> None:
    """Word for word."""
    assert dict(blocks("write-an-environment.md", "python"))[name] == (EXAMPLES / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("test_letters.py", 2), ("test_safe.py", 2)])
def test_the_tests_of_the_page_pass(here: Path, name: str, number: int) -> None:
    """Each of them, with the file beside it."""
    (here / name).write_text(dict(blocks("write-an-environment.md", "python"))[name])
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=120, check=False)

    assert f"{number} passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["letters.yaml", "safe.yaml"])
def test_an_environment_of_ones_own_trains(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What it tells beside the reward is a metric."""
    text = dict(blocks("write-an-environment.md", "yaml"))[name]
    steps = train_here(here, monkeypatch, run_file(here, text, chat=name == "safe.yaml"))

    assert all("episode/turns" in step or "episode/found" in step for step in steps)


@pytest.mark.slow
def test_the_environment_of_the_page_is_learned(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's run file, half of it; every worker is in this process, and the trainer the reference."""
    overrides = [
        f"model.path={make_spell_model(here / 'model', 1)}",
        f"out={here / 'run'}",
        "actor.backend=reference:d1",
        "steps=40",
        "evaluation.every_steps=0",
    ]
    monkeypatch.chdir(ROOT)
    run_here(monkeypatch, EXAMPLES / "letters.yaml", overrides)
    rewards = [step["reward"] for step in read_lines(here / "run" / "metrics.jsonl")]

    assert mean(rewards[-10:]) > mean(rewards[:10]) + 0.15, rewards


# ------------------------------------------------------------------------------------------------ the ecosystem's


def test_every_environment_is_on_the_page() -> None:
    """And none that is not there."""
    page = (ROOT / "docs/how-to/environments.md").read_text()
    listed = set(re.findall(r"^\| \[.+?\| `(\w+)` \|[^|]*\|$", page, re.MULTILINE)) - {"single_turn"}
    known = {each.name for each in default_registry().listings("workflow") if "areal-environments" in each.origin}

    assert listed == known


@pytest.mark.slow
def test_the_mixture_of_reasoning_gym_trains(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sets of it with weights, scored by its own scorers."""
    ((_, text),) = blocks("environments.md", "yaml", of="reasoning-gym")
    train_here(here, monkeypatch, run_file(here, text, chat=True))


def harbor_file(folder: Path, **options: object) -> Path:
    """Write the page's run of task folders, with a task of each format in place; only the sandbox is another."""
    tasks: Any = runpy.run_path(str(TESTS / "tasks.py"))  # Any: functions
    tasks["harbor_task"](folder / "tasks", "one"), tasks["terminal_bench_task"](folder / "tasks", "two")
    ((_, text),) = blocks("environments.md", "yaml", of="Harbor and Terminal-Bench")
    page = yaml.safe_load(text)
    known = {"sandbox": "local", "image": "", "max_turns": 2, **options}
    page["rollout"]["workflow"]["options"] = known
    return run_file(folder, yaml.safe_dump(page), chat=True)


@pytest.mark.parametrize("commands", ["tool", "block"])
def test_task_folders_train(here: Path, monkeypatch: pytest.MonkeyPatch, commands: str) -> None:
    """One of Harbor's and one of Terminal-Bench's, whichever way the policy gives commands."""
    steps = train_here(here, monkeypatch, harbor_file(here, commands=commands))

    assert all("episode/in_time" in step for step in steps)


def test_the_agent_of_the_page_does_task_folders(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the policy at the shell."""
    ((title, agent),) = blocks("environments.md", "python", of="Harbor and Terminal-Bench")
    (here / title).write_text(agent)
    steps = train_here(here, monkeypatch, harbor_file(here, agent=f"{title}:run"))

    assert all(step["episode/commands"] == 1.0 for step in steps)


def test_a_package_that_is_missing_is_told_while_a_run_is_planned(here: Path) -> None:
    """With the command that installs it."""
    (_, text), _ = blocks("environments.md", "yaml", of="verifiers")
    config = load_config(run_file(here, text))

    with pytest.raises(EngineMissing, match="installed without its engine") as caught:
        make_plan(config, default_registry(), {})
    assert "areal_environments[verifiers]" in str(caught.value.fix)


@pytest.mark.environments
@pytest.mark.parametrize(("number", "python"), [(0, "verifiers-0.3"), (1, "verifiers-0.4")])
def test_environments_of_verifiers_train(here: Path, number: int, python: str) -> None:
    """Of both interfaces; the parts of their rewards are metrics."""
    (_, text) = blocks("environments.md", "yaml", of="verifiers")[number]
    steps = train_by(interpreter(python), here, run_file(here, text))

    assert all("episode/exact" in step or "episode/right" in step for step in steps)


@pytest.mark.environments
def test_an_environment_of_openenv_trains(here: Path) -> None:
    """Served by the run itself."""
    ((_, text),) = blocks("environments.md", "yaml", of="OpenEnv")
    more = {"rollout": {"workflow": {"options": {"server": "guess_server.py:app"}}}}
    steps = train_by(interpreter("verifiers-0.3"), here, run_file(here, text, more, chat=True))

    assert all("episode/turns" in step for step in steps)


@contextmanager
def resource_server(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the address of a server that NeMo Gym ships, and the file of its example rows."""
    command = [interpreter("nemo-gym"), str(TESTS / "resource_servers.py"), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        with process.stdin:
            _, port, data = json.loads(process.stdout.readline())
            yield f"http://127.0.0.1:{port}", Path(data, "example.jsonl")


@pytest.mark.environments
def test_a_resource_server_of_nemo_gym_trains(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the page's own rows would want a longer context than the tiny model has."""
    ((_, text),) = blocks("environments.md", "yaml", of="NeMo Gym")
    with resource_server("example_single_tool_call") as (url, rows):
        options = {"path": str(rows)}
        more = {"data": {"options": options}, "rollout": {"workflow": {"options": {"server": url}}}}
        steps = train_here(here, monkeypatch, run_file(here, text, more, chat=True))

    assert all(step["reward"] == 1.0 for step in steps)
