"""A tokenizer's chat template, asked for the text of a conversation.

Knows: how a template is called, what it was found to have a place for, and what closes an answer.
Does not know: tokens, or how answers are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from areal_agentic.renderer import Message, Tool
from areal_core.contract.errors import DatasetError
from areal_renderers.messages import Form, Json, content_of, deep
from areal_renderers.ordinary import Encoder

_MARKS = ("arealfirst", "arealsecond", "arealthird")
"""Stand for contents where a template is asked what it does with them."""
_CALL = ("arealcall", "arealother")


@frozen(kw_only=True)
class Places:
    """What a template writes, and what it would leave out without a word.

    Example: Places(system=True, later_system=True, developer=False, tools=True, tool=True, num_calls=2,
        beside_content=True)
    """

    system: bool
    later_system: bool
    """A message of the system, or a developer, may stand behind the first one."""
    developer: bool
    tools: bool
    tool: bool
    num_calls: int
    """Calls of one answer: none, one, or 2 for any number."""
    beside_content: bool
    """An answer may have a content beside its calls."""


class ChatTemplate:
    """The template of one tokenizer, with the variables of a run."""

    def __init__(self, tokenizer: Any, encoder: Encoder, variables: Mapping[str, Any]) -> None:
        """Any: a Hugging Face tokenizer; variables are the template's own.

        Raises:
            DatasetError: there is no template, or it does not read a switch that is given.
        """
        self._tokenizer, self._encoder, self._variables = tokenizer, encoder, dict(variables)
        self.source = str(getattr(tokenizer, "chat_template", None) or "")
        if not self.source:
            raise DatasetError(
                "the model's tokenizer has no chat template",
                why="messages become text by the model's own template",
                fix="take the renderer `plain`, or a chat model",
            )
        if "enable_thinking" in variables and "enable_thinking" not in self.source:
            raise DatasetError(
                f"enable_thinking={str(variables['enable_thinking']).lower()} has no effect",
                why="the model's chat template does not read `enable_thinking`",
                fix="leave it out, or give the template's own variables in `template`",
            )
        self.form = Form()
        self.form = self._found_form()
        self.places = self._found_places()

    def text(self, messages: Sequence[Message], tools: Sequence[Tool], *, ask: bool) -> str:
        """Return the text of a conversation, marked where somebody wrote the text of a control token.

        Raises:
            DatasetError: the template refuses it, or would leave a part of it out.
        """
        self._check(messages, tools)
        return self._text(messages, tools, ask)

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool], ask: bool) -> str:
        written = self._encoder.written
        told = [self.form.of(message, written) for message in messages]
        options: Json = {**self._variables, "add_generation_prompt": ask, "tokenize": False}
        options["tools"] = [deep(tool, written) for tool in tools] or None
        try:
            return str(self._tokenizer.apply_chat_template(told, **options))
        except Exception as exc:  # whatever a template and jinja2 raise
            raise DatasetError(
                "the chat template refuses the conversation",
                why=f"{type(exc).__name__}: {str(exc)[:300]}",
                fix="correct the roles and contents of the messages, or the variables given to the template",
            ) from exc

    def _check(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        places = self.places
        known = {"user": True, "assistant": True, "system": places.system, "developer": places.developer}
        for number, message in enumerate(messages):
            role, calls = message.get("role"), message.get("tool_calls") or ()
            if not known.get(str(role), role == "tool" and places.tool):
                raise _no_place(f"the role {role!r}")
            if number and role in ("system", "developer") and not places.later_system:
                raise _no_place(f"a message of the role {role!r} behind the first one")
            if len(calls) > places.num_calls and places.num_calls < 2:
                raise _no_place("several calls in one answer" if places.num_calls else "calls of tools")
            if calls and not places.beside_content and content_of(message):
                raise _no_place("a content beside calls of tools")
        if tools and not places.tools:
            raise _no_place("tools")

    def _found_form(self) -> Form:
        asked = [_user(_MARKS[0])]
        spaced = '{"arealkey":  "arealvalue"}'
        text = spaced in self._tried([*asked, _calling(spaced)], Form(text_arguments=True))
        made = json.dumps(json.loads(spaced))
        objects = made in self._tried([*asked, _calling(json.loads(spaced))], Form())
        found = Form(text_arguments=text, object_arguments=objects or not text)
        thinks = [*asked, {"role": "assistant", "content": _MARKS[1], "reasoning_content": _MARKS[2]}]
        if _MARKS[2] not in self._tried(thinks, found) and "message.thinking" in self.source:
            return evolve(found, thoughts="thinking")
        return found

    def _found_places(self) -> Places:
        first, second, third = _MARKS
        tool = {"type": "function", "function": {"name": _CALL[0], "description": "-", "parameters": {}}}
        begun = [_user(first)]
        one = self._written([*begun, _calling("{}")])
        several = self._written([*begun, _calling("{}", *_CALL)])
        later = [*begun, {"role": "assistant", "content": second}, {"role": "system", "content": third}, _user(second)]
        answered = [*begun, _calling("{}"), {"role": "tool", "content": second, "name": _CALL[0]}]
        return Places(
            system=first in self._written([{"role": "system", "content": first}, _user(second)]),
            later_system=third in self._written(later),
            developer=first in self._written([{"role": "developer", "content": first}, _user(second)]),
            tools=_CALL[0] in self._written([_user(third)], tools=[tool]),
            tool=second in self._written(answered),
            beside_content=second in self._written([*begun, {**_calling("{}"), "content": second}]),
            num_calls=2 if all(name in several for name in _CALL) else int(_CALL[0] in one),
        )

    def closers(self) -> frozenset[str]:
        """Return the control tokens that it writes behind a content of an answer, by what follows."""
        begun = [_user(_MARKS[0]), {"role": "assistant", "content": _MARKS[1]}]
        found = set()
        for role in ("user", "tool"):
            text = self._written([*begun, {"role": role, "content": _MARKS[2], "name": _CALL[0]}])
            behind = text.partition(_MARKS[1])[2].partition(_MARKS[2])[0]
            places = {behind.find(token): token for token in self._encoder.controls if token in behind}
            if places:
                found.add(max((token for place, token in places.items() if place == min(places)), key=len))
        return frozenset(found)

    def _tried(self, messages: Sequence[Message], form: Form) -> str:
        """Return the text of a conversation in another form; nothing if the template refuses it."""
        kept, self.form = self.form, form
        try:
            return self._written(messages)
        finally:
            self.form = kept

    def _written(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Return the text of a conversation that asks what the template does; nothing if it refuses it."""
        try:
            return self._text(messages, tools, ask=False)
        except DatasetError:
            return ""


def _user(content: str) -> Json:
    return {"role": "user", "content": content}


def _calling(arguments: object, *names: str) -> Json:
    functions = [{"name": name, "arguments": arguments} for name in names or _CALL[:1]]
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": f} for f in functions]}


def _no_place(what: str) -> DatasetError:
    return DatasetError(
        f"the model's chat template has no place for {what}",
        why="it would leave it out without a word",
        fix="write it into a content yourself, or give the tokenizer a template that has one",
    )
