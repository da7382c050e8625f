"""The page about rewards: every reward is on it, its Python does what it says; its yaml is checked with the rest."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from attrs import evolve

from areal_core.contract.workflow import RewardInput
from areal_core.plugins.registry import Registry
from areal_local.rewards.child import Scorer
from areal_tasks.rewards.remote import Remote, RemoteConfig
from areal_tasks.tiny import make_spell_model

PAGE = (Path(__file__).parents[2] / "docs/how-to/rewards.md").read_text()
_PYTHON = re.compile(r"^```python(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = {match["title"] or "trainer": match["text"] for match in _PYTHON.finditer(PAGE)}
VALUE = RewardInput(prompt="2 + 2 =", completion=" 4", completion_ids=(2, 1), stop_reason="stop", row={"answer": "4"})


def scorer(tmp_path: Path, title: str, name: str) -> Scorer:
    """Return a reward of a file of the page."""
    file = tmp_path / title
    file.write_text(PYTHON[title])
    registry = Registry()
    registry.add_file(file)
    function: Any = registry.build("reward", name)  # Any: a user's function
    return Scorer(function)


def test_every_reward_is_on_the_page() -> None:
    """And none that is not there; `nothing` is the reward of runs that have none."""
    listed = set(re.findall(r"^\| \[`(\w+)`\]\(#", PAGE, re.MULTILINE))
    known = {listing.name for listing in Registry().listings("reward") if not listing.proof}

    assert listed == known - {"nothing"}


def test_the_reward_of_ones_own_pays_as_it_says(tmp_path: Path) -> None:
    """A value and a part."""
    (result,) = scorer(tmp_path, "my_rewards.py", "short")([VALUE])

    assert (result.value, result.components) == (1.0 - 0.002, {"right": 1.0})


@pytest.mark.parametrize(("name", "size", "value"), [("likes", 32, 1.0), ("lengths", 8, -2.0)])
def test_the_rewards_of_many_completions_are_asked_about_as_many(
    tmp_path: Path, name: str, size: int, value: float
) -> None:
    """By both forms."""
    found = scorer(tmp_path, "batched.py", name)

    assert (found.batching.size, [result.value for result in found([VALUE] * 3)]) == (size, [value] * 3)


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Yield the address of a served application. Any: an ASGI application."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


def test_the_server_of_the_page_answers_the_remote_reward() -> None:
    """In the form of a batch."""
    names: dict[str, Any] = {}  # Any: a module's names
    exec(PYTHON["scorer.py"], names)

    with serving(names["app"]) as url:
        remote = Scorer(Remote(RemoteConfig(url=f"{url}/score", columns=("answer",), batch_size=16)))
        results = remote([VALUE, evolve(VALUE, completion="5")])
        del remote

    assert [result.value for result in results] == [1.0, 0.0], results


def test_the_trainer_of_the_page_plans_and_shows_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the model is another."""
    monkeypatch.chdir(tmp_path)
    make_spell_model(tmp_path / "path/of/a/model", 1)

    exec(PYTHON["trainer"], {})

    shown = capsys.readouterr().out
    assert "reward    composed of 2 parts:" in shown and "right(" in shown and "letters(" in shown
