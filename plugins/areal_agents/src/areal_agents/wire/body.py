"""What bodies of all APIs have in common: JSON that can be written again, texts, tools, structures.

Knows: pydantic, parts of contents, JSON schemas of answers.
Does not know: the fields of one API, sessions, or HTTP.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from areal_agents.asked import ChatAsk, Replies, TextAsk
from areal_agents.episode import AgentSession
from areal_core.contract.inference import Grammar, Structure

Json = dict[str, Any]
"""Any: JSON."""
MODEL = "policy"
_DELTA = 48
"""Characters of one event of a stream."""


class Body(BaseModel):
    """A body of some API. Fields that nobody here reads are ignored, as by other servers."""

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, value: object) -> object:
        """Refuse what Python reads and nobody could write: half of a surrogate pair, NaN, ever deeper lists."""
        if isinstance(value, bytes):
            raise ValueError("it is not sent as JSON: the content-type has to be application/json")
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it cannot be written as JSON: {error}") from None
        return value


B = TypeVar("B", bound=Body)


class Api(ABC, Generic[B]):
    """One path that answers: what its body asks, and how the answer is said."""

    ping: ClassVar[str] = ": ping\n\n"
    """What a stream says while there is nothing to say."""

    @abstractmethod
    def asked(self, body: B, session: AgentSession) -> ChatAsk | TextAsk:
        """Return what a body asks.

        Raises:
            NotDone: something that cannot be done here, or names what is not there.
        """

    def answered(self, body: B, ask: ChatAsk | TextAsk, replies: Replies, session: AgentSession) -> None:
        """Remember what later requests may name; most APIs name nothing."""

    @abstractmethod
    def whole(self, body: B, replies: Replies) -> Json:
        """Return the answer that is not streamed."""

    @abstractmethod
    def events(self, body: B, replies: Replies) -> Iterator[str]:
        """Return the answer as server-sent events."""


class NotDone(Exception):
    """A request asks for something that this endpoint cannot do, or names what is not there."""

    def __init__(self, what: str, status: int = 400) -> None:
        super().__init__(what)
        self.status = status


class TextPart(BaseModel):
    """A part of a content that is text, under the names that APIs have for it."""

    type: Literal["text", "input_text", "output_text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(BaseModel):
    """A part that says why there is none."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """Return it as text."""
        return self.refusal


def _known_parts(value: object) -> object:
    """Refuse a part that is no text by its name."""
    parts = value if isinstance(value, list) else []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and "text" not in kind and kind != "refusal":
            raise ValueError(f"a content of the type {kind!r} cannot be given to this model, which reads text")
    return value


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Content = Annotated[str | list[Part], BeforeValidator(_known_parts)]
"""A text, or parts of text."""


def joined(content: str | Sequence[TextPart | RefusalPart] | None, between: str = "") -> str:
    """Return a content as one text."""
    if content is None or isinstance(content, str):
        return content or ""
    return between.join(part.text for part in content)


def tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Json:
    """Return a tool as chat templates have it, keys in the order that models are trained on. Any: a JSON schema."""
    told = {"description": description} if description else {}
    function: Json = {"name": name, **told, "parameters": dict(parameters or {"type": "object", "properties": {}})}
    return {"type": "function", "function": function}


def structure(kind: str, schema: object, *, tools: bool) -> Structure | None:
    """Return what a format demands of an answer's text.

    Raises:
        NotDone: it is no format, or calls of tools would not fit it.
    """
    if kind == "text":
        return None
    if tools:
        raise NotDone("a format of the answer together with tools cannot be kept: a call would not have that format")
    if kind == "json_object":
        return Structure(grammar=Grammar.JSON_SCHEMA, text='{"type": "object"}')
    if kind == "json_schema" and isinstance(schema, dict):
        return Structure(grammar=Grammar.JSON_SCHEMA, text=json.dumps(schema))
    raise NotDone(f"the format {kind!r} is none of text, json_object and json_schema with a schema")


def chosen(choice: object, tools: Sequence[Json]) -> Sequence[Json]:
    """Return the tools that the policy is told of: all where it may choose, none where it may not call.

    Raises:
        NotDone: it is to be forced, which nobody can without changing how it samples.
    """
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in (None, "auto"):
        return tools
    if kind == "none":
        return ()
    raise NotDone(f"tool_choice {kind!r} cannot be kept: the policy calls a tool or does not, as it learned; use auto")


def absent(body: BaseModel, reasons: Mapping[str, str]) -> None:
    """Refuse fields that ask for what cannot be done.

    Raises:
        NotDone: names the first of them that is set.
    """
    for name, reason in reasons.items():
        if getattr(body, name):
            raise NotDone(f"{name}: {reason}")


def deltas(text: str) -> list[str]:
    """Return a text in the pieces of a stream."""
    return [text[place : place + _DELTA] for place in range(0, len(text), _DELTA)]


def event(body: Mapping[str, Any], name: str = "") -> str:  # Any: JSON
    """Return one server-sent event."""
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(body)}\n\n"


def now() -> int:
    """Return the time in whole seconds."""
    return int(time.time())
