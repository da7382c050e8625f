"""The official clients talk to the endpoint as they talk to their makers, and what the policy said is trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai

from areal_core.contract.data import Trajectory

from .scripted import ADD, CALLING, END, THOUGHTFUL, Scripted, listening, texts

USER: Any = {"role": "user", "content": "1 + 2?"}
CHAT_TOOLS: Any = [{"type": "function", "function": ADD}]
ITEM_TOOLS: Any = [{"type": "function", **ADD}]
BLOCK_TOOLS: Any = [{"name": "add", "description": ADD["description"], "input_schema": ADD["parameters"]}]
DONE = f"It is 3.{END}"


def trained(session: Scripted, talk: Callable[[str, str], Awaitable[None]], **options: Any) -> list[Trajectory]:
    """Have somebody talk to an endpoint, by its URL and a key; return what becomes of it."""

    async def run() -> list[Trajectory]:
        async with listening(session, **options) as (endpoint, opened):
            await talk(endpoint.url, opened.key)
            assert opened.failure is None
            return list(opened.trajectories(1.0))

    return asyncio.run(run())


def test_openai_chats_with_tools_and_streams() -> None:
    """A tool is called, answered, and the answer streamed: one trajectory of the tokens that were generated."""

    async def talk(url: str, key: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as api:
            first = await api.chat.completions.create(model="m", messages=[USER], tools=CHAT_TOOLS)
            message = first.choices[0].message
            assert message.tool_calls is not None and first.choices[0].finish_reason == "tool_calls"
            answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
            messages: Any = [USER, message.model_dump(exclude_none=True), answer]
            async with api.chat.completions.stream(model="m", messages=messages, tools=CHAT_TOOLS) as stream:
                whole = (await stream.get_final_completion()).choices[0]
            assert (whole.message.content, whole.finish_reason) == ("It is 3.", "stop")

    (made,) = trained(Scripted(CALLING, THOUGHTFUL), talk)

    assert texts(made)[1] == CALLING + THOUGHTFUL
    assert "<tool_response>\n3\n</tool_response>" in texts(made)[0]
    assert made.versions[made.loss_mask].unique().tolist() == [7]


def test_openai_without_asyncio_completes_and_responds() -> None:
    """The client that blocks, in a thread: completions, responses, the reward and the models."""

    def talk(url: str, key: str) -> None:
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as api:
            assert [model.id for model in api.models.list()] == ["policy"]
            assert api.completions.create(model="m", prompt="1 + 2?").choices[0].text == "It is 3."
            streamed = api.completions.create(model="m", prompt="1 + 2?", stream=True)
            assert "".join(chunk.choices[0].text for chunk in streamed) == "It is 3."
            first = api.responses.create(model="m", input="1 + 2?", instructions="Add.")
            assert (first.output_text, first.status) == ("It is 3.", "completed")
            second = api.responses.create(model="m", input="Sure?", instructions="Add.", previous_response_id=first.id)
            assert second.output_text == "It is 3."
            api.post("/reward", body={"reward": 0.5}, cast_to=object)

    made = trained(Scripted(DONE), lambda url, key: asyncio.to_thread(talk, url, key))

    assert [texts(each)[1] for each in made] == [DONE, DONE, DONE + DONE]


def test_openai_responses_stream_and_call() -> None:
    """Events make the same response; items of it are given back, thoughts included."""

    async def talk(url: str, key: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as api:
            items: Any = [USER]
            kinds = set()
            async with api.responses.stream(model="m", input=items, tools=ITEM_TOOLS) as stream:
                async for event in stream:
                    kinds.add(event.type)
                first = await stream.get_final_response()
            assert {"response.function_call_arguments.delta", "response.reasoning_text.delta"} <= kinds
            items += [item.model_dump(exclude_none=True) for item in first.output]
            call = next(item for item in first.output if item.type == "function_call")
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "3"})
            second = await api.responses.create(model="m", input=items, tools=ITEM_TOOLS)
            assert second.output_text == "It is 3."

    thinking = f"<think>\nA tool.\n</think>\n\n{CALLING}"
    (made,) = trained(Scripted(thinking, DONE), talk)

    assert texts(made)[1] == thinking + DONE


def test_anthropic_talks_with_tools_thinks_and_streams() -> None:
    """A tool is used, its result told, the answer streamed."""

    async def talk(url: str, key: str) -> None:
        base = url.removesuffix("/v1")
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        asked: Any = {"model": "m", "max_tokens": 2048, "system": "Add.", "tools": BLOCK_TOOLS, "thinking": thinking}
        async with anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0) as api:
            counted = await api.messages.count_tokens(model="m", system="Add.", tools=BLOCK_TOOLS, messages=[USER])
            first = await api.messages.create(messages=[USER], **asked)
            assert counted.input_tokens == first.usage.input_tokens
            assert [block.type for block in first.content] == ["thinking", "tool_use"]
            assert first.stop_reason == "tool_use" and first.content[1].input == {"a": 1, "b": 2}
            result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "3"}
            messages: Any = [
                USER,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            async with api.messages.stream(messages=messages, **asked) as stream:
                assert "".join([piece async for piece in stream.text_stream]) == "It is 3."
                last = await stream.get_final_message()
            assert (last.stop_reason, last.usage.output_tokens) == ("end_turn", len("It is 3.") + 1)

    thinking = f"<think>\nA tool.\n</think>\n\n{CALLING}"
    (made,) = trained(Scripted(thinking, DONE), talk)

    assert texts(made)[1] == thinking + DONE


def test_anthropic_by_bearer_without_asyncio() -> None:
    def talk(url: str, key: str) -> None:
        with anthropic.Anthropic(base_url=url.removesuffix("/v1"), auth_token=key, api_key=None, max_retries=0) as api:
            said = api.messages.create(model="m", max_tokens=4, messages=[USER])
            assert (said.content[0].text, said.stop_reason) == ("It i", "max_tokens")
            assert [model.id for model in api.models.list()] == ["policy"]

    (made,) = trained(Scripted(DONE), lambda url, key: asyncio.to_thread(talk, url, key))

    assert texts(made)[1] == "It i"
