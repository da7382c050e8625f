"""Tools of a policy: functions described by their type hints and docstrings, and what a call of one comes to.

A call that cannot be made, raises or takes too long is no failure of the episode: the policy is told, and may do
better. Only errors of ours, such as a sandbox that cannot be had, are raised.

Knows: functions, JSON schemas, deadlines.
Does not know: how a call is written in tokens (`renderer`), or where code runs (`sandbox`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pydantic_core
from attrs import define, field, frozen
from docstring_parser import parse
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ArgsKwargs

from areal_agentic.renderer import Message, Tool
from areal_agentic.threads import in_thread
from areal_core.contract.errors import ArealError, ConfigError
from areal_core.contract.optional import ToolCall


class ToolError(Exception):
    """Raised by a tool to tell the policy what went wrong, in these words and no others."""


@frozen(kw_only=True)
class FunctionTool:
    """A function that the policy may call.

    Example: FunctionTool.of(search), for def search(query: str, limit: int = 5) -> list[str] with a docstring
    """

    name: str
    schema: Tool
    """What the policy is shown."""
    timeout_s: float | None = 10.0
    """One call; a plain function goes on in its thread after it, an async one is cancelled. None: no end."""
    _call: TypeAdapter[Any]  # Any: what the function returns

    @classmethod
    def of(cls, function: Callable[..., Any], *, timeout_s: float | None = 10.0) -> FunctionTool:
        """Describe a function by its type hints and its docstring. Any: the user's own.

        Raises:
            ConfigError: a parameter cannot be written in JSON, has no name, or its type cannot be resolved.
        """
        name = getattr(function, "__name__", type(function).__name__)
        told = parse(inspect.getdoc(function) or "")
        try:
            call: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]  # pydantic takes functions
            parameters = call.json_schema(schema_generator=_Untitled)
        except (PydanticUserError, NameError, TypeError) as error:
            raise ConfigError(
                f"{name} cannot be a tool",
                why=str(error).partition("\n")[0],
                fix="give every parameter a name and a type that JSON has: str, int, float, bool, list, dict, Literal",
            ) from error
        if parameters.get("type") != "object":
            raise ConfigError(
                f"{name} cannot be a tool", why="it takes arguments without names", fix="remove * and / parameters"
            )
        for each in told.params:
            if each.description and each.arg_name in parameters.get("properties", {}):
                parameters["properties"][each.arg_name].setdefault("description", " ".join(each.description.split()))
        described = {"name": name, "description": (told.description or "").strip(), "parameters": parameters}
        return cls(name=name, schema={"type": "function", "function": described}, timeout_s=timeout_s, call=call)

    async def __call__(self, arguments: str) -> str:
        """Call the function with JSON arguments and return its result, as text or else as JSON.

        Raises:
            ToolError: the arguments do not fit, the function raised, or it took too long.
            ArealError: the function raised one.
        """
        deadline = asyncio.timeout(self.timeout_s)
        try:
            given = pydantic_core.from_json(arguments or "{}")
            if not isinstance(given, dict):
                raise ToolError(f"the arguments are no JSON object: {arguments[:80]}")
            async with deadline:
                result = await in_thread(self._call.validate_python, ArgsKwargs((), given))
                if inspect.isawaitable(result):
                    result = await result
            return result if isinstance(result, str) else pydantic_core.to_json(result, fallback=str).decode()
        except (ToolError, ArealError):
            raise
        except ValidationError as error:
            raise ToolError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from error
        except (Exception, SystemExit) as error:  # whatever a user's function raises
            if deadline.expired():
                raise ToolError(f"{self.name} took longer than {self.timeout_s:g} s") from error
            raise ToolError(f"{type(error).__name__}: {error}") from error


@define(eq=False)
class Toolbox:
    """The tools of one episode: answers calls, and counts them."""

    tools: Sequence[FunctionTool] = field(converter=tuple[FunctionTool, ...])
    max_chars: int = 4096
    """Of what one call is answered with; the rest is cut, and the policy told so."""
    num_calls: int = field(default=0, init=False)
    num_errors: int = field(default=0, init=False)

    @property
    def schemas(self) -> list[Tool]:
        """Return what the policy is shown."""
        return [tool.schema for tool in self.tools]

    async def answer(self, calls: Iterable[ToolCall]) -> list[Message]:
        """Make calls side by side and return a message of the role tool for each, in their order.

        Raises:
            ArealError: a tool raised one; the other calls are cancelled.
        """
        try:
            async with asyncio.TaskGroup() as scope:
                made = [scope.create_task(self._told(call)) for call in calls]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return [task.result() for task in made]

    async def _told(self, call: ToolCall) -> Message:
        self.num_calls += 1
        tool = next((each for each in self.tools if each.name == call.name), None)
        try:
            if tool is None:
                raise ToolError(f"there is no tool {call.name!r}; there are {', '.join(t.name for t in self.tools)}")
            text = await tool(call.arguments)
        except ToolError as error:
            self.num_errors += 1
            text = f"Error: {error}"
        if len(text) > self.max_chars:
            text = f"{text[: self.max_chars]}\n[{len(text) - self.max_chars} more characters left out]"
        return {"role": "tool", "name": call.name, "content": text}


class _Untitled(GenerateJsonSchema):
    """Leaves out titles, which say a name again."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # Any: pydantic's own kinds of schema
        """Return False."""
        return False
