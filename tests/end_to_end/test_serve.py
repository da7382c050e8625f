"""`areal serve`: clients in a process of their own, with OpenAI's client, teach the policy that serves them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from areal_episodes.reader import Filter, Reader
from areal_tasks.tiny_chat import make_chat_model

from .live_run import LiveRun, live_run

ROOT = Path(__file__).parents[2]
_TITLED = re.compile(r"^```\w+ title=\"(?P<title>[^\"]+)\"\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CLIENTS = """
import asyncio, json, sys
from openai import AsyncOpenAI

found, number = json.load(open(sys.argv[1])), int(sys.argv[2])

async def visit(admin, places):
    async with places:
        session = await admin.post("/sessions", cast_to=object)
        client = admin.with_options(api_key=session["api_key"])
        answer = await client.completions.create(model="policy", prompt="stone>", max_tokens=8)
        text = answer.choices[0].text
        reward = text.count("e") / max(1, len(text))
        await client.post("/reward", body={"reward": reward}, cast_to=object)
        return reward

async def main():
    places = asyncio.Semaphore(8)
    async with AsyncOpenAI(base_url=found["base_url"], api_key=found["admin_key"]) as admin:
        print(json.dumps(await asyncio.gather(*(visit(admin, places) for _ in range(number)))))

asyncio.run(main())
"""
BEGUN = [sys.executable, "-m", "areal_core.cli.main", "serve"]
KEYS = [
    "rollout.prompts_per_step=8",
    "rollout.max_staleness=0",
    "rollout.sampling.max_new_tokens=8",
    "actor.backend=reference:d1",
    "actor.optimizer.lr=0.01",
    "actor.optimizer.warmup_steps=0",
    "options.port=0",
]


def clients(folder: Path, number: int) -> list[float]:
    """Have so many sessions, and return their rewards in the order in which they began."""
    words = [sys.executable, "-c", CLIENTS, str(folder / "online.json"), str(number)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    rewards: list[float] = json.loads(done.stdout)
    return rewards


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def check_who_is_trained_on(folder: Path) -> list[str]:
    """As many as the staleness gate has room for; one more is served, and told so. Returns the keys of all."""
    found = json.loads((folder / "online.json").read_text())
    with OpenAI(base_url=found["base_url"], api_key=found["admin_key"]) as admin:
        sessions: Any = [admin.post("/sessions", cast_to=object) for _ in range(9)]
        last = admin.with_options(api_key=sessions[-1]["api_key"])
        assert last.completions.create(model="policy", prompt="stone>").choices[0].text is not None
        for session in sessions:
            admin.post(f"/sessions/{session['id']}/end", cast_to=object)
    assert [session["trains"] for session in sessions] == [True] * 8 + [False]
    return [session["api_key"] for session in sessions]


def ended(run: LiveRun) -> str:
    """Press Ctrl-C; return what was printed. Nothing is left running."""
    run.send(signal.SIGINT)
    code, output = run.wait()
    assert code == 130 and "To continue" in output, output
    assert run.survivors() == [] and run.left_in_shared_memory() == []
    return output


@pytest.mark.slow
def test_clients_teach_the_policy_that_serves_them(tmp_path: Path, model: Path) -> None:
    """Their rewards rise with its versions; Ctrl-C ends it in good order, and --resume goes on with the same key."""
    folder = tmp_path / "run"
    example = str(ROOT / "examples/agents/online.yaml")
    with live_run([*BEGUN, example, f"model.path={model}", f"out={folder}", *KEYS], folder) as run:
        run.wait_for_file("online.json")
        keys = check_who_is_trained_on(folder)
        first = clients(folder, 400)
        output = ended(run)
    kept, steps = json.loads((folder / "online.json").read_text())["admin_key"], len(run.steps())

    assert mean(first[-50:]) > mean(first[:50]) + 0.2
    assert (folder / "online.json").stat().st_mode & 0o777 == 0o600
    others = [path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "online.json"]
    assert not any(key.encode() in said for key in (kept, *keys) for said in (output.encode(), *others))
    with Reader(folder) as reader:
        trained = list(reader.facts(Filter(fate="trained")))
        rejected = list(reader.facts(Filter(fate="rejected")))
    assert len(trained) == 8 * steps and len(rejected) == 8 and steps >= 15
    assert len({each["version"] for each in trained}) == steps, "each batch is of another version"

    with live_run([*BEGUN, "--resume", str(folder)], folder) as run:
        run.wait_for_event("run_started")
        before = (folder / "online.json").stat().st_ino
        run.wait_until(lambda: (folder / "online.json").stat().st_ino != before, "another address")
        again = clients(folder, 60)
        ended(run)

    assert json.loads((folder / "online.json").read_text())["admin_key"] == kept
    assert mean(again) > mean(first[:50]) + 0.2, "it goes on with what it had learned"
    assert [step["step"] for step in run.steps()] == list(range(1, len(run.steps()) + 1)) and len(run.steps()) > steps


def python(folder: Path, *words: str) -> str:
    """Run a file of Python in a folder; return what it prints."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_files_of_the_page_do_as_it_says(tmp_path: Path) -> None:
    """The clients of the page, OpenAI's and Anthropic's, and the example's have sessions with a run of its yaml."""
    make_chat_model(tmp_path / "model", 1)
    for match in _TITLED.finditer((ROOT / "docs/how-to/online.md").read_text()):
        (tmp_path / match["title"]).write_text(match["text"])
    folder = tmp_path / "runs/my-online"
    begun = [*BEGUN, str(tmp_path / "online.yaml"), f"model.path={tmp_path / 'model'}", f"out={folder}"]
    smaller = ["rollout.backend=reference:d1", "rollout.prompts_per_step=1"]
    with live_run([*begun, *KEYS, *smaller], folder) as run:
        run.wait_for_file("online.json")
        assert python(tmp_path, "client.py") == "True [0, 0]\n"
        run.wait_for_step(1)
        told = python(tmp_path, "messages.py")
        assert "'status': 'serving'" in told and "'trained': 1" in told and "'untrained': 1" in told, told
        python(tmp_path, str(ROOT / "examples/agents/visitor.py"), str(folder / "online.json"), "3")
        ended(run)


@pytest.mark.slow
def test_a_session_may_span_versions_within_the_bound(tmp_path: Path, model: Path) -> None:
    """Each token carries the version that drew it, and the trainer waits for a session rather than let it grow old."""
    folder = tmp_path / "run"
    example = str(ROOT / "examples/agents/online.yaml")
    words = [*BEGUN[:-1], "train", example, f"model.path={model}", f"out={folder}", *KEYS]
    with live_run([*words, "rollout.prompts_per_step=2", "rollout.max_staleness=1"], folder) as run:
        run.wait_for_file("online.json")
        found = json.loads((folder / "online.json").read_text())
        with OpenAI(base_url=found["base_url"], api_key=found["admin_key"]) as admin:

            def begun() -> OpenAI:
                session: Any = admin.post("/sessions", cast_to=object)
                return admin.with_options(api_key=session["api_key"])

            def ask(client: OpenAI) -> None:
                client.completions.create(model="policy", prompt="stone>", max_tokens=4)

            def reward(client: OpenAI) -> Any:
                return client.post("/reward", body={"reward": 1.0}, cast_to=object)

            def served() -> Any:
                return admin.get("/status", cast_to=object)

            long = begun()
            ask(long)
            for _ in range(2):
                ask(short := begun())
                reward(short)
            run.wait_for_step(1)
            run.wait_until(lambda: served()["version"] == 1, "version 1")
            ask(long)
            for _ in range(3):
                ask(short := begun())
                reward(short)
            run.wait_until(lambda: served()["trained"] == 5, "five sessions")
            assert (served()["version"], len(run.steps())) == (1, 1), "the batch waits for the long session"
            assert reward(long)["versions"] == [0, 1]
            run.wait_for_step(2)
        ended(run)

    with Reader(folder) as reader:
        spans = [
            (each["oldest_version"], each["newest_version"], each["step"])
            for each in reader.facts(Filter(fate="trained"))
        ]
    assert (0, 1, 2) in spans
    assert max(step["staleness_max"] for step in run.steps()) == 1
