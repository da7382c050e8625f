"""Agents as frameworks build them: each calls a tool and goes on, and all of it is one trajectory of exact tokens.

Frameworks take seconds to import, and every process of a parallel run reads this file: they are imported by what uses
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from .scripted import CALLING, END, Scripted, listening, texts

THINKING = f"<think>\nA tool.\n</think>\n\n{CALLING}"
DONE = f"It is 3.{END}"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def of_openai(kind: str) -> Callable[[str, str], Awaitable[None]]:
    async def talk(url: str, key: str) -> None:
        import agents

        without = agents.RunConfig(tracing_disabled=True)
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as api:
            model = getattr(agents, kind)(model="policy", openai_client=api)
            agent = agents.Agent(name="adder", instructions="Add.", model=model, tools=[agents.function_tool(add)])
            result = await agents.Runner.run(agent, "1 + 2?", run_config=without)
            assert result.final_output == "It is 3."
            streamed = agents.Runner.run_streamed(agent, "1 + 2?", run_config=without)
            assert [event async for event in streamed.stream_events()] and streamed.final_output == "It is 3."

    return talk


def of_langchain(**options: Any) -> Callable[[str, str], Awaitable[None]]:
    async def talk(url: str, key: str) -> None:
        from langchain.agents import create_agent
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model="policy", base_url=url, api_key=key, max_retries=0, **options)
        agent = create_agent(model, tools=[add])
        for _ in range(2):
            result = await agent.ainvoke({"messages": [{"role": "user", "content": "1 + 2?"}]})
            assert result["messages"][-1].text == "It is 3."

    return talk


@pytest.mark.parametrize(
    "talk",
    [
        of_openai("OpenAIChatCompletionsModel"),
        of_openai("OpenAIResponsesModel"),
        of_langchain(),
        of_langchain(streaming=True),
        of_langchain(use_responses_api=True),
    ],
    ids=["openai-agents chat", "openai-agents responses", "langchain", "langchain streams", "langchain responses"],
)
def test_a_framework_calls_a_tool_and_goes_on(talk: Callable[[str, str], Awaitable[None]]) -> None:
    """Twice the same task: two conversations, each of them one trajectory, thoughts and calls as they were said."""

    async def run() -> list[tuple[str, str]]:
        session = Scripted(THINKING, DONE, THINKING, DONE)
        async with listening(session) as (endpoint, opened):
            await talk(endpoint.url, opened.key)
            assert opened.metrics["agent/restarted"] == 0
            return [texts(each) for each in opened.trajectories(1.0)]

    made = asyncio.run(run())

    assert [mine for _, mine in made] == [THINKING + DONE] * 2
    assert all("<tool_response>\n3\n</tool_response>" in whole and '"name": "add"' in whole for whole, _ in made)
