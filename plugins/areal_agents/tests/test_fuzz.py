"""Whatever arrives, the endpoint answers with a reason, and never with an error of its own."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .scripted import ADD, CALLING, END, THOUGHTFUL, Scripted, asking, listening

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
JSON_FORM = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
WHOLE: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]},
                {"role": "assistant", "content": None, "reasoning_content": "So.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
            "tools": [{"type": "function", "function": ADD}],
            "tool_choice": "auto",
            "n": 2,
            "stop": ["."],
            "max_tokens": 9,
            "logprobs": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        {
            "messages": [{"role": "user", "content": "1"}],
            "response_format": {"type": "json_schema", "json_schema": JSON_FORM},
        },
    ],
    "completions": [{"prompt": [5, 6], "n": 2, "stop": ".", "logprobs": 1, "max_tokens": 4, "stream": True}],
    "responses": [
        {
            "model": "m",
            "instructions": "Add.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
                {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "S"}]},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "3"},
            ],
            "tools": [{"type": "function", **ADD}],
            "text": {"format": {"type": "text"}},
            "include": ["message.output_text.logprobs"],
            "max_output_tokens": 16,
            "store": True,
            "stream": True,
        },
        {"input": "1 + 2?", "previous_response_id": "resp_1", "text": {"format": JSON_FORM}},
    ],
    "messages": [
        {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "Add."}],
            "messages": [
                {"role": "user", "content": "1 + 2?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "So.", "signature": "x"},
                        {"type": "text", "text": "A call."},
                        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
            ],
            "tools": [{"name": "add", "description": "Adds.", "input_schema": ADD["parameters"]}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "stop_sequences": ["."],
            "stream": True,
        }
    ],
    "messages/count_tokens": [{"messages": [{"role": "user", "content": "1"}]}],
    "reward": [{"reward": 0.5}],
}
PATHS = [*WHOLE, "models", "models/x", "files", "", "chat/completions/", "../v1/reward"]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("\x00\ud800")
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the way to everything inside."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in pairs:
        yield from places(each, (*path, name))


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, Any]:
    """Return a path and a body that was right for it, up to three things of which are others, or are not there."""
    path = draw(st.sampled_from(list(WHOLE)))
    body = copy.deepcopy(draw(st.sampled_from(WHOLE[path])))
    for _ in range(draw(st.integers(0, 3))):
        if not (there := list(places(body))):
            break
        *way, last = draw(st.sampled_from(there))
        inside: Any = body
        for step in way:
            inside = inside[step]
        if draw(st.booleans()):
            inside[last] = draw(VALUES)
        else:
            del inside[last]
    return path, body


def answered(path: str, content: bytes, *, method: str = "POST", kind: str = "application/json") -> httpx.Response:
    """Return what a session of a policy that thinks, calls and is cut answers; it never fails itself."""

    async def ask() -> httpx.Response:
        session = Scripted(THOUGHTFUL, CALLING, "cut", f"Hi{END}")
        async with asking(session) as (client, opened):
            answer = await client.request(method, f"/{path}", content=content, headers={"content-type": kind})
            assert opened.failure is None
            return answer

    return asyncio.run(ask())


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500 and answer.status_code != 422, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"], answer.text


@settings(max_examples=120, deadline=None)
@given(asked=spoiled())
def test_a_body_that_was_right_and_is_spoiled(asked: tuple[str, Any]) -> None:
    """In every API, whatever is wrong in it."""
    path, body = asked

    check(answered(path, json.dumps(body).encode(errors="surrogatepass")))


@pytest.mark.parametrize("path", list(WHOLE))
def test_the_bodies_that_are_spoiled_are_right(path: str) -> None:
    """Nothing would be tried of bodies that are refused for one thing alone."""
    for body in WHOLE[path]:
        answer = answered(path, json.dumps(body).encode())
        assert answer.status_code == (404 if "previous_response_id" in body else 200), answer.text


DEEP = b"[" * 100_000
SMILE = '{"messages": [{"role": "user", "content": "\U0001f642"}]}'


@settings(max_examples=80, deadline=None)
@given(path=st.sampled_from(PATHS), content=st.binary(max_size=20), method=st.sampled_from(["POST", "GET", "PUT"]))
@example(path="chat/completions", content=DEEP, method="POST")
@example(path="reward", content=b'{"reward": ' + DEEP, method="POST")
@example(path="messages", content=b'{"messages": ' + b'{"a":' * 50_000, method="POST")
@example(path="completions", content=b'{"prompt": [' + b"9" * 5_000 + b"]}", method="POST")
@example(path="reward", content=b'{"reward": 1' + b"0" * 5_000 + b"}", method="POST")
@example(path="reward", content=b'{"reward": 1e999}', method="POST")
@example(path="reward", content=b'{"reward": NaN}', method="POST")
@example(path="chat/completions", content=SMILE.encode("utf-16"), method="POST")
@example(path="chat/completions", content=SMILE.encode("utf-8-sig"), method="POST")
@example(path="chat/completions", content=SMILE.encode() + b"\xff\xfe", method="POST")
@example(path="chat/completions", content=b'{"messages": [{"role": "user", "content": "\xc3\x28\x00"}]}', method="POST")
@example(path="responses", content=b'{"input": "\\ud800"}', method="POST")
@example(path="responses", content=b"null", method="POST")
@example(path="messages", content=b"", method="POST")
@example(path="models/%00%ff", content=b"", method="GET")
def test_bytes_that_are_no_body(path: str, content: bytes, method: str) -> None:
    """To every path, by several methods."""
    check(answered(path, content, method=method))


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "application/json;charset=x"]
)
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages", "reward"])
def test_a_body_of_another_kind(path: str, kind: str) -> None:
    check(answered(path, json.dumps(WHOLE[path][0]).encode(), kind=kind))


WIRE = [
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Og==\r\nX-Api-Key: \xc3\xa9\r\n\r\n",
    b"GET /%00/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/reward HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
    b"POST /v1/reward HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"BREW /v1/reward HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00" * 64 + b"\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
]


def test_what_is_no_request_of_anybody() -> None:
    """On the wire: strangers, broken requests, another protocol. The session behind its key goes on."""

    async def run() -> list[bytes]:
        async with listening(Scripted(f"Hi{END}")) as (endpoint, opened):
            port = int(endpoint.url.rsplit(":", 1)[1].partition("/")[0])

            async def told(sent: bytes) -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                writer.write_eof()
                try:
                    return await reader.readline()
                finally:
                    writer.close()

            lines = [await told(sent) for sent in WIRE]
            key = opened.key.encode()
            lines.append(
                await told(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: bearer  " + key + b" \r\n\r\n")
            )
            assert opened.failure is None
            return lines

    *broken, right = asyncio.run(run())

    assert [line[9:10] for line in broken] == [b"4"] * len(WIRE), broken
    assert right.startswith(b"HTTP/1.1 200")
