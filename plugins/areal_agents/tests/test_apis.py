"""What every path answers, checked by the official clients' own types: no field is missing, wrong or unknown."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import warnings
from collections.abc import Iterator
from typing import Any

import anthropic.types as claude
import httpx
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from areal_agentic.endpoint import SessionLimits
from areal_agents.wire.body import tool
from areal_core.contract.errors import CapabilityError, NoReplica, PromptTooLong

from .scripted import ADD, CALLING, END, THOUGHTFUL, Scripted, asking, key, texts, tokens

USER = [{"role": "user", "content": "1 + 2?"}]
CHAT_TOOL = {"type": "function", "function": ADD}
ITEM_TOOL = {"type": "function", **ADD}
BLOCK_TOOL = {"name": "add", "description": ADD["description"], "input_schema": ADD["parameters"]}
LOGPROBS = "message.output_text.logprobs"
CHAT = {"messages": USER, "model": "any-name"}
RESPONSES = {"input": "1 + 2?"}
MESSAGES = {"messages": USER, "max_tokens": 99, "model": "any-name"}


def extras(value: object, path: str = "") -> Iterator[str]:
    """Return every field that a client's types do not know."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from extras(each, f"{path}[{number}]")


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(kind: Any, told: Any) -> Any:
    """Return what a client makes of JSON, of which nothing is left over but `reasoning_content`, as others name it."""
    made = adapter(kind).validate_json(json.dumps(told), strict=True)
    assert [name for name in extras(made) if not name.endswith(".reasoning_content")] == []
    return made


def post(session: Scripted, path: str, *bodies: dict[str, Any], **options: Any) -> list[httpx.Response]:
    """Return what is answered to bodies, one after the other."""

    async def run() -> list[httpx.Response]:
        async with asking(session, **options) as (client, _):
            return [await client.post(path, json=body) for body in bodies]

    return asyncio.run(run())


def events(answer: httpx.Response) -> list[Any]:
    """Return the events of a stream, the end mark aside."""
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    ("path", "body", "whole", "event"),
    [
        ("/chat/completions", {**CHAT, "tools": [CHAT_TOOL]}, ChatCompletion, ChatCompletionChunk),
        ("/chat/completions", {**CHAT, "logprobs": True, "n": 2}, ChatCompletion, ChatCompletionChunk),
        ("/completions", {"prompt": "1 + 2?", "logprobs": 1, "n": 2}, Completion, Completion),
        ("/responses", {**RESPONSES, "tools": [ITEM_TOOL], "instructions": "Add."}, Response, ResponseStreamEvent),
        ("/responses", {**RESPONSES, "include": [LOGPROBS]}, Response, ResponseStreamEvent),
        (
            "/messages",
            {**MESSAGES, "tools": [BLOCK_TOOL], "thinking": {"type": "enabled"}},
            claude.Message,
            claude.RawMessageStreamEvent,
        ),
        ("/messages", {**MESSAGES, "system": "Add."}, claude.Message, claude.RawMessageStreamEvent),
    ],
)
def test_answers_and_events_are_what_the_clients_types_say(
    path: str, body: dict[str, Any], whole: Any, event: Any
) -> None:
    """Strictly validated, whole and streamed, with text, thoughts and calls, ended and cut."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    for said in (THOUGHTFUL, CALLING, f"So: {CALLING}", "cut"):
        answer, streamed = post(Scripted(said), path, body, {**body, **stream})

        assert answer.status_code == 200, answer.text
        checked(whole, answer.json())
        assert all(checked(event, each) for each in events(streamed))


def test_a_chat_tells_thoughts_calls_and_how_it_ended() -> None:
    several = post(Scripted(THOUGHTFUL, CALLING, "cut"), "/chat/completions", *[{**CHAT, "tools": [CHAT_TOOL]}] * 3)
    thought, called, cut = (answer.json()["choices"][0] for answer in several)

    assert (thought["message"]["content"], thought["message"]["reasoning_content"]) == ("It is 3.", "One and two.")
    assert called["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert [each["finish_reason"] for each in (thought, called, cut)] == ["stop", "tool_calls", "length"]
    assert several[0].json()["usage"]["completion_tokens"] == len("x\nOne and two.\nx\n\nIt is 3.x")


def test_a_stream_says_what_the_whole_answer_says() -> None:
    """In several pieces, calls and their arguments included."""
    said = f"A long answer {'of many words ' * 9}{CALLING}"
    body = {**CHAT, "tools": [CHAT_TOOL]}
    whole, streamed = post(Scripted(said), "/chat/completions", body, {**body, "stream": True})

    deltas = [each["choices"][0]["delta"] for each in events(streamed)]
    assert "".join(each.get("content") or "" for each in deltas) == whole.json()["choices"][0]["message"]["content"]
    calls = [each["tool_calls"][0] for each in deltas if "tool_calls" in each]
    assert calls[0]["function"]["name"] == "add" and len(deltas) > 6
    assert json.loads("".join(each["function"]["arguments"] for each in calls)) == {"a": 1, "b": 2}


def test_stop_texts_end_an_answer_and_are_not_told() -> None:
    """The tokens keep them; what the agent is told goes on in the same trajectory."""

    async def run() -> tuple[Any, Any, list[Any]]:
        async with asking(Scripted("one;", f"two{END}")) as (client, opened):
            first = (await client.post("/messages", json={**MESSAGES, "stop_sequences": [";"]})).json()
            said = {"role": "assistant", "content": first["content"]}
            more = [*USER, said, {"role": "user", "content": "And?"}]
            second = (await client.post("/messages", json={**MESSAGES, "messages": more})).json()
            return first, second, list(opened.trajectories(1.0))

    first, second, made = asyncio.run(run())

    assert (first["content"][0]["text"], first["stop_reason"], first["stop_sequence"]) == ("one", "stop_sequence", ";")
    assert second["content"][0]["text"] == "two"
    assert [texts(each)[1] for each in made] == [f"one;two{END}"]


def test_a_prompt_may_stand_in_a_list() -> None:
    """As LangChain's client of completions sends it; texts and tokens."""
    told = post(session := Scripted(f"Hi{END}"), "/completions", {"prompt": ["1"]}, {"prompt": [[5, 6]], "best_of": 1})

    assert [answer.status_code for answer in told] == [200, 200]
    assert [ids for ids, _, _ in session.asked] == [tokens("1"), [5, 6]]


def test_a_chat_ends_where_its_family_ends_an_answer() -> None:
    """Also where the model itself would go on, as base models of a family do; a text does not."""
    session = Scripted(f"Hi{END}")
    for path, body in (("/chat/completions", CHAT), ("/messages", MESSAGES), ("/completions", {"prompt": "1"})):
        post(session, path, body)

    (end,) = tokens(END)
    assert [end in sampling.stop_token_ids for _, sampling, _ in session.asked] == [True, True, False]


def test_a_response_goes_on_from_the_one_it_names() -> None:
    """With the exact tokens. What was not to be stored cannot be named, nor what never was."""

    async def run() -> tuple[Any, Any, Any, Any]:
        async with asking(Scripted(CALLING, f"It is 3.{END}")) as (client, opened):
            asked = {"tools": [ITEM_TOOL], "instructions": "Add."}
            first = (await client.post("/responses", json={**RESPONSES, **asked})).json()
            output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "3"}
            more = {"input": [output], "previous_response_id": first["id"], **asked}
            second = (await client.post("/responses", json=more)).json()
            unknown = await client.post("/responses", json={**more, "previous_response_id": "resp_1"})
            dropped = (await client.post("/responses", json={**RESPONSES, "store": False})).json()
            gone = {"input": "So?", "previous_response_id": dropped["id"]}
            assert (await client.post("/responses", json=gone)).status_code == 404
            return first, second, unknown, opened.trajectories(1.0)

    first, second, unknown, made = asyncio.run(run())

    assert second["output"][0]["content"][0]["text"] == "It is 3." and second["previous_response_id"] == first["id"]
    assert unknown.status_code == 404 and "resp_1" in unknown.json()["error"]["message"]
    assert texts(made[0])[1] == f"{CALLING}It is 3.{END}"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/chat/completions", {**CHAT, "tool_choice": "required", "tools": [CHAT_TOOL]}, "required"),
        ("/chat/completions", {**CHAT, "tool_choice": {"type": "function"}, "tools": [CHAT_TOOL]}, "function"),
        ("/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ("/chat/completions", {**CHAT, "functions": [ADD]}, "use tools"),
        ("/chat/completions", {"messages": [*USER, {"role": "assistant", "content": "So"}]}, "assistant"),
        ("/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ("/chat/completions", {**CHAT, "response_format": {"type": "grammar"}}, "grammar"),
        ("/chat/completions", {**CHAT, "response_format": {"type": "json_object"}, "tools": [CHAT_TOOL]}, "tools"),
        ("/chat/completions", {"messages": []}, "messages"),
        ("/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/completions", {"prompt": [-1]}, "prompt"),
        ("/completions", {"prompt": ["a", "b"]}, "ask once for each"),
        ("/completions", {"prompt": [[]]}, "prompt"),
        ("/completions", {"prompt": "a", "best_of": 2}, "best_of"),
        ("/completions", {"prompt": [10**6]}, "1000000"),
        ("/responses", {**RESPONSES, "tools": [{"type": "web_search"}]}, "web_search"),
        ("/responses", {**RESPONSES, "background": True}, "background"),
        ("/responses", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ("/responses", {"input": []}, "input"),
        ("/messages", {"messages": USER}, "max_tokens"),
        ("/messages", {**MESSAGES, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ("/messages", {**MESSAGES, "tool_choice": {"type": "any"}, "tools": [BLOCK_TOOL]}, "any"),
        ("/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1}, "image"),
        ("/reward", {"reward": "good"}, "reward"),
        ("/reward", {}, "reward"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(path: str, body: dict[str, Any], told: str) -> None:
    """With 400 in the words of the API; nothing is generated, and the session goes on."""
    (answer,) = post(session := Scripted("never"), path, body)

    error = answer.json()["error"]
    assert answer.status_code == 400 and told in error["message"], answer.text
    assert error["type"] == "invalid_request_error" and session.asked == []


@pytest.mark.parametrize(
    ("path", "body"), [("/chat/completions", CHAT), ("/messages", MESSAGES), ("/responses", RESPONSES)]
)
def test_a_format_is_kept_by_engines_that_can_and_else_refused(path: str, body: dict[str, Any]) -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    asked = {
        "/chat/completions": {"response_format": {"type": "json_schema", "json_schema": form}},
        "/messages": {"output_config": {"format": form}},
        "/responses": {"text": {"format": form}},
    }[path]
    session = Scripted(f"{{}}{END}", CapabilityError("the engine does not claim sampling.structured"))
    kept, refused = post(session, path, *[{**body, **asked}] * 2)

    assert kept.status_code == 200 and session.asked[0][2] is not None
    assert json.loads(session.asked[0][2].text) == schema
    assert refused.status_code == 400 and "sampling.structured" in refused.json()["error"]["message"]


def test_errors_have_the_shape_of_each_api() -> None:
    """A key that opens nothing, a path that is none, limits, bodies that are too large, and a fleet that failed."""

    async def run() -> dict[str, tuple[int, Any]]:
        told: dict[str, tuple[int, Any]] = {}
        session = Scripted(PromptTooLong("it has 99 tokens"), NoReplica("every replica is out of service"))
        async with asking(session, limits=SessionLimits(max_requests=2)) as (client, opened):

            async def tell(name: str, path: str, method: str = "POST", **options: Any) -> None:
                answer = await client.request(method, path, **options)
                told[name] = answer.status_code, answer.json()

            await tell("stranger", "/messages", json=MESSAGES, headers=key("areal-guess"))
            await tell("nobody", "/responses", json=RESPONSES, headers=key(""))
            await tell("nowhere", "/files", json={})
            await tell("method", "/chat/completions", "GET")
            await tell("raw", "/messages", content=b"{", headers={"content-type": "application/json"})
            await tell("large", "/messages", content=b" " * (33 << 20))
            await tell("long", "/chat/completions", json=CHAT)
            await tell("fleet", "/messages", json=MESSAGES)
            assert isinstance(opened.failure, NoReplica)
            await tell("limit", "/messages", json=MESSAGES)
        return told

    told = asyncio.run(run())

    statuses = {name: status for name, (status, _) in told.items()}
    assert statuses == {
        "stranger": 401,
        "nobody": 401,
        "nowhere": 404,
        "method": 405,
        "raw": 400,
        "large": 413,
        "long": 400,
        "fleet": 503,
        "limit": 429,
    }
    for name in ("stranger", "raw", "large", "fleet", "limit"):
        assert told[name][1]["type"] == "error" and told[name][1]["error"]["message"]
    kinds = [told[name][1]["error"]["type"] for name in ("stranger", "limit", "large", "nobody")]
    assert kinds == ["authentication_error", "rate_limit_error", "request_too_large", "authentication_error"]
    assert told["long"][1]["error"]["code"] == "context_length_exceeded"


def test_models_are_told_to_both_kinds_of_clients() -> None:
    """Whatever a client calls the policy."""

    async def run() -> list[Any]:
        async with asking(Scripted("never")) as (client, _):
            theirs = {"anthropic-version": "2023-06-01"}
            paths: list[tuple[str, dict[str, str]]] = [("/models", {}), ("/models/gpt-x", {}), ("/models", theirs)]
            return [(await client.get(path, headers=more)).json() for path, more in paths]

    several, one, theirs = asyncio.run(run())

    assert [checked(Model, each).id for each in several["data"]] == ["policy"]
    assert checked(Model, one).id == "gpt-x"
    assert [adapter(claude.ModelInfo).validate_python(each).id for each in theirs["data"]] == ["policy"]


def test_a_stream_that_waits_says_that_it_is_there() -> None:
    """Before the answer come pings; what goes wrong then is the end of the stream."""
    fails = Scripted(f"Hi{END}", NoReplica("gone"))
    told, failed = post(fails, "/chat/completions", *[{**CHAT, "stream": True}] * 2, patience_s=0.0)
    (message,) = post(Scripted(f"Hi{END}"), "/messages", {**MESSAGES, "stream": True}, patience_s=0.0)

    assert told.text.startswith(": ping\n\n") and told.text.endswith("data: [DONE]\n\n")
    assert events(failed)[-1]["error"]["message"] == "gone" and "[DONE]" not in failed.text
    assert message.text.startswith("event: ping\n")


def test_tokens_of_a_message_are_counted_without_asking() -> None:
    asked = {key: value for key, value in MESSAGES.items() if key != "max_tokens"}
    session = Scripted(f"Hi{END}")

    (counted,) = post(session, "/messages/count_tokens", asked)
    (answer,) = post(session, "/messages", MESSAGES)

    assert counted.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}
    assert len(session.asked) == 1


def test_a_tool_is_written_as_models_are_shown_it() -> None:
    """Name, description, parameters, as transformers and servers of models write them: the order is tokens."""
    assert list(tool("add", "Add.", {"type": "object"})["function"]) == ["name", "description", "parameters"]


def test_a_session_may_be_over_at_any_moment_of_a_request() -> None:
    """Also between two steps of answering it, of which the second is then never begun, nor left to be awaited."""

    async def body() -> set[int]:
        told = set()
        for steps in range(40):
            async with asking(Scripted(f"3{END}")) as (client, opened):
                request = asyncio.create_task(client.post("/chat/completions", json=CHAT))
                for _ in range(steps):
                    await asyncio.sleep(0)
                opened.close()
                told.add((await request).status_code)
        return told

    with warnings.catch_warnings(record=True, action="always") as warned:
        told = asyncio.run(body())
        gc.collect()
    assert told == {200, 401}
    assert [str(each.message) for each in warned] == []
