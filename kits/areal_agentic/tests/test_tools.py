"""Functions become tools by their hints and docstrings, and no call of one ends an episode."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_agentic.tools import FunctionTool, Toolbox, ToolError
from areal_core.contract.errors import ConfigError, EpisodeFailed
from areal_core.contract.optional import ToolCall


def search(query: str, limit: int = 2, order: Literal["new", "old"] = "new") -> list[str]:
    """Search the library.

    It has few books.

    Args:
        query: what to look for,
            in words.
        limit: answers at most.
    """
    return [f"{query} {order}"] * limit


def answered(*calls: tuple[str, str], tools: list[Callable[..., Any]], **options: Any) -> list[str]:
    box = Toolbox([FunctionTool.of(tool, timeout_s=options.pop("timeout_s", 10.0)) for tool in tools], **options)
    made = asyncio.run(box.answer([ToolCall(name=name, arguments=arguments) for name, arguments in calls]))
    assert [message["role"] for message in made] == ["tool"] * len(calls)
    assert [message["name"] for message in made] == [name for name, _ in calls]
    assert box.num_calls == len(calls)
    assert box.num_errors == sum(message["content"].startswith("Error: ") for message in made)
    return [message["content"] for message in made]


def test_a_schema_says_what_hints_and_docstring_say() -> None:
    """Types, defaults, choices, descriptions; what is required and that there is nothing else."""
    schema = FunctionTool.of(search).schema

    assert schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the library.\n\nIt has few books.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what to look for, in words."},
                    "limit": {"type": "integer", "default": 2, "description": "answers at most."},
                    "order": {"type": "string", "enum": ["new", "old"], "default": "new"},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }


def test_calls_are_answered_in_their_order() -> None:
    """Side by side: each waits for a later one; plain and async functions, text as it is and all else as JSON."""
    later = asyncio.Event()

    async def first() -> str:
        """Wait for the second."""
        await later.wait()
        return "first"

    async def second() -> dict[str, int]:
        """Let the first go on."""
        later.set()
        return {"second": 2}

    calls = ("first", ""), ("second", "{}"), ("search", '{"query": "x", "limit": "1"}')
    assert answered(*calls, tools=[first, second, search]) == ["first", '{"second":2}', '["x new"]']


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("search", "", "query: Missing required argument"),
        ("search", '{"query": "x", "page": 1}', "page: Unexpected keyword argument"),
        ("search", '{"query": "x", "limit": "many"}', "limit: Input should be a valid integer"),
        ("search", '{"query": "x", "order": "odd"}', "order: Input should be 'new' or 'old'"),
        ("search", "[1]", "the arguments are no JSON object: [1]"),
        ("search", '{"query": ', "ValueError: EOF"),
        ("find", "{}", "there is no tool 'find'; there are search"),
    ],
)
def test_a_call_that_cannot_be_made_is_told(name: str, arguments: str, told: str) -> None:
    """The policy hears what does not fit."""
    (text,) = answered((name, arguments), tools=[search])

    assert text.startswith(f"Error: {told}")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ZeroDivisionError("by nothing"), "ZeroDivisionError: by nothing"),
        (SystemExit(3), "SystemExit: 3"),
        (ToolError("in these words"), "in these words"),
        (TimeoutError("its own"), "TimeoutError: its own"),
        (ValueError("no"), "ValueError: no"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("plain", [True, False])
def test_what_a_tool_raises_is_told(raised: BaseException, told: str, plain: bool) -> None:
    """It is the policy's to read, whatever it is."""

    def fails() -> None:
        """Fail."""
        raise raised

    async def afails() -> None:
        """Fail."""
        raise raised

    assert answered((fails.__name__ if plain else "afails", "{}"), tools=[fails, afails]) == [f"Error: {told}"]


def test_a_call_has_an_end() -> None:
    """An async one is cancelled; a plain one is left to its thread."""
    cancelled, released = [], threading.Event()

    async def forever() -> None:
        """Wait for nothing."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    def stuck() -> None:
        """Wait for the test."""
        released.wait()

    async def run() -> list[str]:
        box = Toolbox([FunctionTool.of(tool, timeout_s=0.5) for tool in (forever, stuck)])
        made = await box.answer([ToolCall(name=name, arguments="{}") for name in ("forever", "stuck")])
        released.set()
        return [message["content"] for message in made]

    assert asyncio.run(run()) == ["Error: forever took longer than 0.5 s", "Error: stuck took longer than 0.5 s"]
    assert cancelled == [True]


def test_our_own_errors_are_no_answers() -> None:
    """A tool may end the episode, and does so with its own error; calls beside it are cancelled."""
    beside = []

    async def fails() -> None:
        """Fail the episode."""
        raise EpisodeFailed("the tool has had enough")

    async def waits() -> None:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            beside.append("cancelled")

    with pytest.raises(EpisodeFailed, match="had enough"):
        answered(("waits", "{}"), ("fails", "{}"), tools=[fails, waits])
    assert beside == ["cancelled"]


def test_a_long_result_is_cut_and_the_cut_is_told() -> None:
    """So that no call fills the context."""
    (text,) = answered(("search", '{"query": "abcdefgh", "limit": 1}'), tools=[search], max_chars=4)

    assert text == '["ab\n[12 more characters left out]'


def test_a_long_error_is_cut_too() -> None:
    """What a program printed before it failed may be as long as any result."""

    def fails() -> None:
        """Fail."""
        raise ToolError("x" * 99)

    (text,) = answered(("fails", "{}"), tools=[fails], max_chars=12)

    assert text == "Error: xxxxx\n[94 more characters left out]"


def no_name(value: str, /) -> None: ...


def no_json(value: threading.Thread) -> None: ...


def no_type(value: Nothing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("function", [no_name, no_json, no_type])
def test_a_function_that_cannot_be_described_is_refused(function: Callable[..., Any]) -> None:
    """By its name, with the reason, when the workflow is built."""
    with pytest.raises(ConfigError, match=f"{function.__name__} cannot be a tool"):
        FunctionTool.of(function)


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(str))
def test_whatever_the_policy_writes_is_answered(arguments: str) -> None:
    """No text of arguments raises."""
    (text,) = answered(("search", arguments), tools=[search])

    assert text.startswith("Error: ") or arguments
