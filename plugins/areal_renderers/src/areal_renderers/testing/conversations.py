"""Conversations that hypothesis makes, and what a model's own template makes of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from areal_agentic.renderer import Answer
from areal_core.contract.optional import ToolCall
from areal_renderers.proof import TOOLS

ANY = st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0\ufffd")
WORDS = st.sampled_from(
    ("Hello", "two\nlines", "\u4f60\u597d", " a ", "\n", "{}", "<b>", "\U0001f642\u200d", "", "'s", "3.5")
)
TEXTS = st.one_of(st.lists(WORDS, max_size=3).map("".join), st.text(ANY, max_size=12))
THOUGHTS = st.one_of(st.just(""), TEXTS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(ANY, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
CALLS = st.builds(
    lambda name, arguments: ToolCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),
    st.sampled_from([tool["function"]["name"] for tool in TOOLS]),
    st.dictionaries(st.text("abc_", min_size=1, max_size=4), VALUES, max_size=3),
)


def user(content: str) -> dict[str, Any]:
    """Return a question."""
    return {"role": "user", "content": content}


def tool(content: str) -> dict[str, Any]:
    """Return the answer of a tool."""
    return {"role": "tool", "content": content}


def as_object(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the arguments of its calls as objects."""
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    told = [{"name": each["name"], "arguments": json.loads(each["arguments"])} for each in functions]
    return {**message, "tool_calls": [{"type": "function", "function": each} for each in told]}


@st.composite
def histories(draw: Any, num_calls: int = 2, max_turns: int = 3) -> list[dict[str, Any]]:
    """Draw a conversation that ends with a question of a user or the answer of a tool."""
    messages = [{"role": "system", "content": draw(TEXTS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, max_turns - 1))):
        messages += draw(rounds(num_calls))
    return [*messages, *draw(rounds(num_calls, whole=False))]


@st.composite
def rounds(draw: Any, num_calls: int, *, whole: bool = True) -> list[dict[str, Any]]:
    """Draw a question, maybe calls and their answers, and, for a whole one, the answer of the assistant."""
    messages = [user(draw(TEXTS))]
    for _ in range(draw(st.integers(0, 2 if num_calls else 0))):
        calls = draw(st.lists(CALLS, min_size=1, max_size=num_calls))
        messages.append(Answer(content="", thoughts=draw(THOUGHTS), calls=calls).message)
        messages += [tool(draw(TEXTS)) for _ in calls]
    if whole:
        messages.append(Answer(content=draw(TEXTS), thoughts=draw(THOUGHTS)).message)
    return messages


@st.composite
def answers(draw: Any, num_calls: int = 2) -> Answer:
    """Draw an answer: calls, or a content, and maybe thoughts."""
    calls = draw(st.lists(CALLS, max_size=num_calls))
    content = "" if calls else draw(TEXTS)
    return Answer(content=content, thoughts=draw(THOUGHTS), calls=calls)
