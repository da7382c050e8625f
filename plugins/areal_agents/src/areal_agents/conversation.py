"""Which answered conversation a request goes on from, so that nothing of it is tokenized again.

Knows: messages, how they are compared, and what a renderer writes behind an answer.
Does not know: how answers are generated, or what becomes of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from areal_agentic.renderer import BoundRenderer, Message, Tool


class Restart(StrEnum):
    """Why a conversation that was answered here before begins anew."""

    EDITED = "edited"
    """Its history is not what was said: changed, cut, or an answer in it is nobody's."""
    UNBRIDGED = "unbridged"
    """The renderer has no tokens to go on with, as where the template leaves earlier thoughts out now."""


@frozen(kw_only=True)
class Prompt:
    """The tokens of a conversation up to the answer that is asked for."""

    ids: Sequence[int]
    history: Sequence[Message]
    """What the tokens say: the agent's messages, with every answer of ours as it was generated."""
    tools: Sequence[Tool] = ()
    asked: Sequence[Message] = ()
    """The agent's messages as they came."""
    restart: Restart | None = None


@frozen(kw_only=True)
class Answered:
    """A conversation that ends with an answer."""

    prompt: Prompt
    output_ids: Sequence[int]
    message: Message
    """The answer as its tokens say it."""
    call_ids: Sequence[str]

    @property
    def history(self) -> Sequence[Message]:
        """Return the conversation, answer included."""
        return [*self.prompt.history, self.message]


@define
class Conversations:
    """Those of one session. `prompt` changes nothing; only what was answered is remembered."""

    renderer: BoundRenderer
    keep_thoughts: bool = False
    _answered: dict[str, list[Answered]] = field(factory=dict)
    """Digest of a conversation and its answer -> those that look like it, the newest first."""
    _openings: set[str] = field(factory=set)
    """Digests of what stood before the first answer."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """Return the tokens of a conversation: those it was answered with as far as it was, then what is new.

        Raises:
            DatasetError: the model's family has no place for one of the messages.
        """
        digests, answers = _digests(messages, tools), _answers(messages)
        restart = None
        if answers:
            last = answers[-1] + 1
            found = self._like(digests[last], messages[:last]) if last < len(messages) else []
            for answered in found:
                going_on = self._bridged(answered, messages, last, tools)
                if going_on is not None:
                    return going_on
            if found:
                restart = Restart.UNBRIDGED
            elif digests[answers[0]] in self._openings:
                restart = Restart.EDITED
        ids = self.renderer.render(messages, tools=tools, ask=True)
        return Prompt(ids=ids, history=messages, tools=tools, asked=messages, restart=restart)

    def answered(self, prompt: Prompt, output_ids: Sequence[int], message: Message, told: Message) -> None:
        """Remember an answer: `message` is what its tokens say, `told` what the agent was told."""
        digests, answers = _digests([*prompt.asked, told], prompt.tools), _answers(prompt.asked)
        self._openings.add(digests[answers[0] if answers else len(prompt.asked)])
        made = Answered(prompt=prompt, output_ids=output_ids, message=message, call_ids=_call_ids(told))
        self._answered.setdefault(digests[-1], []).insert(0, made)

    def _like(self, digest: str, messages: Sequence[Message]) -> list[Answered]:
        """Return the answered conversations that messages repeat: those with the same ids of calls first."""
        alike = [each for each in self._answered.get(digest, []) if _same_thoughts(messages, each.history)]
        ids = _call_ids(messages[-1])
        return sorted(alike, key=lambda each: list(each.call_ids) != ids)

    def _bridged(
        self, answered: Answered, messages: Sequence[Message], last: int, tools: Sequence[Tool]
    ) -> Prompt | None:
        before, new = answered.prompt, messages[last:]
        bridge = self.renderer.bridge(
            before.history, answered.output_ids, new, tools=tools, keep_thoughts=self.keep_thoughts
        )
        if bridge is None:
            return None
        ids = [*before.ids, *answered.output_ids, *bridge]
        return Prompt(ids=ids, history=[*answered.history, *new], tools=tools, asked=messages)


def _answers(messages: Sequence[Message]) -> list[int]:
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def _digests(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """Return a digest of the first n messages for each n from 0, tools included."""
    running = hashlib.blake2b(json.dumps(list(tools), sort_keys=True).encode(), digest_size=16)
    digests = [running.hexdigest()]
    for message in messages:
        running.update(_compared(message).encode())
        digests.append(running.hexdigest())
    return digests


def _compared(message: Message) -> str:
    """Return what makes a message another one; neither thoughts nor ids of calls, nor white space around an answer."""
    text = str(message.get("content") or "")
    calls = [
        [call["function"]["name"], _value(call["function"]["arguments"])] for call in message.get("tool_calls") or ()
    ]
    text = text.strip() if message["role"] == "assistant" else text
    return json.dumps([message["role"], text, calls, message.get("tool_call_id"), message.get("name")], sort_keys=True)


def _value(arguments: str) -> str:
    """Return JSON in one form, anything else as it is."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _same_thoughts(messages: Sequence[Message], history: Sequence[Message]) -> bool:
    """Return whether thoughts that are told, of any answer, are those it had."""
    return all(
        _thoughts(told) in ("", _thoughts(said))
        for told, said in zip(messages, history, strict=True)
        if told["role"] == "assistant"
    )


def _thoughts(message: Message) -> str:
    return str(message.get("reasoning_content") or "").strip()


def _call_ids(message: Mapping[str, Any]) -> list[str]:  # Any: JSON
    return [str(call.get("id")) for call in message.get("tool_calls") or ()]
