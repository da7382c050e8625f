"""Users' coroutines run apart from the run: one that blocks holds up other agents at most, and is told by its line."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_agents.agents_loop import AgentsLoop
from areal_agents.config import AgentConfig
from areal_agents.function import FunctionAgent
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.data import Episode
from areal_core.contract.errors import EpisodeFailed

from .speaking import Speaking, text_of

BLOCKS = """
import openai

async def run(row, base_url, api_key):
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        client.completions.create(model="policy", prompt=row["prompt"])
    return 1.0
"""
WAITS = """
import openai

async def run(row, base_url, api_key):
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await client.completions.create(model="policy", prompt=row["prompt"])
    return 1.0

async def leave(row, base_url, api_key):
    raise SystemExit(3)

async def cancelled(row, base_url, api_key):
    import asyncio
    raise asyncio.CancelledError
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[Episode | BaseException]]:
    """Make several episodes side by side by a function of a file."""

    def made(text: str, name: str = "run", number: int = 8) -> list[Episode | BaseException]:
        (tmp_path / "agent.py").write_text(text)

        async def several() -> list[Episode | BaseException]:
            workflow = AgentWorkflow(AgentConfig(run=f"{tmp_path}/agent.py:{name}"))
            try:
                calls = [workflow.arun_episode(Speaking(), {"prompt": "ab>"}) for _ in range(number)]
                return list(await asyncio.gather(*calls, return_exceptions=True))
            finally:
                await workflow.close()

        return asyncio.run(several())

    return made


@pytest.mark.parametrize("text", [BLOCKS, WAITS], ids=["a client that blocks", "an async client"])
def test_agents_of_either_kind_of_client_are_answered(run: Any, text: str) -> None:
    """Also by an endpoint in the process that they block."""
    made = run(text)

    assert [text_of(each)[0][:5] for each in made] == ["ab>xa"] * 8


@pytest.mark.parametrize("name", ["leave", "cancelled"])
def test_one_that_would_end_the_loop_ends_itself(run: Any, name: str) -> None:
    """The others go on."""
    first, second = run(WAITS, name, number=2)

    assert isinstance(first, EpisodeFailed) and isinstance(second, EpisodeFailed)
    assert "the agent ended with" in first.what


def test_who_holds_the_loop_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a warning while others wait, and in the error of who waited too long."""
    monkeypatch.setattr("areal_agents.agents_loop._PONG_S", 0.05)  # who waits looks before its own time is over
    let_go, holds = threading.Event(), threading.Event()

    async def hold(*_: object) -> None:
        holds.set()
        let_go.wait()

    async def wait_long() -> EpisodeFailed:
        loop = AgentsLoop(late_s=0.0)
        holding = asyncio.create_task(loop.call(hold))
        await asyncio.to_thread(holds.wait)
        try:
            with pytest.raises(EpisodeFailed) as raised:
                await FunctionAgent(hold, threads=1, timeout_s=1.0, loop=loop)({}, "", "", "")
        finally:
            let_go.set()
            await holding
            loop.close()
        return raised.value

    with caplog.at_level(logging.WARNING):
        error = asyncio.run(wait_long())

    assert f"{__file__}:" in error.why and "in hold: let_go.wait()" in error.why
    (told,) = caplog.messages
    assert "in hold: let_go.wait()" in told and "AsyncOpenAI" in told


def test_a_caller_that_is_cancelled_cancels_its_call() -> None:
    async def run() -> list[str]:
        loop, seen, there = AgentsLoop(), list[str](), threading.Event()

        async def waits() -> None:
            there.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

        calling = asyncio.create_task(loop.call(waits))
        await asyncio.to_thread(there.wait)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await loop.call(asyncio.sleep, 0)
        loop.close()
        return seen

    assert asyncio.run(run()) == ["cancelled"]
