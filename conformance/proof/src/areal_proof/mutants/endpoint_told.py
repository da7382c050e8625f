"""Broken endpoints: answers that are told otherwise than they are kept.

Knows: how the second endpoint's answers and streams are bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

from areal_proof.mutants.rows import Original, after, breaking, row
from areal_proof.second.endpoint import SecondEndpoint
from areal_proof.second.endpoint_session import SecondOpen

breaks = breaking("endpoint/second", SecondEndpoint)
breaks_session = breaking("endpoint/second", SecondEndpoint, part=("opens", SecondOpen))
_FORMS = ("chat", "completions", "messages", "responses")
_DIALOGUES = ("chat", "messages", "responses")
_ENDED = tuple(f"endpoint.answers.ended.{form}" for form in _FORMS)
_STOPS = tuple(f"endpoint.answers.stops.{form}" for form in ("chat", "completions", "messages"))
_USAGE = tuple(f"endpoint.answers.usage.{form}" for form in _FORMS)
_SHORT = {"length": "stop", "incomplete": "completed", "max_tokens": "end_turn"}


def _deep(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:  # Any: JSON
    """Return JSON in which every object was changed."""
    if isinstance(value, list):
        return [_deep(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _deep(one, change) for key, one in change(value).items()}
    return value


def _streamed(events: list[str], change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
    """Return events in which every object was changed."""
    made = []
    for event in events:
        head, _, data = event.partition("data: ")
        told = data if data.startswith("[DONE]") else json.dumps(_deep(json.loads(data), change)) + "\n\n"
        made.append(f"{head}data: {told}")
    return made


def _whole(said: dict[str, Any]) -> dict[str, Any]:
    names = ("finish_reason", "status", "stop_reason")
    return {key: _SHORT.get(str(value), value) if key in names else value for key, value in said.items()}


STOP_ROWS = breaks_session.rows(
    row("StopsAreTold", "Tells an answer with the text that ended it.", *_STOPS,
        up_to=lambda text: (text, None)),
    row("FirstNamedStopCuts", "Cuts an answer at the stop that was named first, not at the first in it.", *_STOPS,
        up_to=lambda original, text, stops: original(text, [stop for stop in stops if stop in text][:1])),
    row("ToldUpToTheEndOfAStop", "Tells an answer up to the end of the stop that ended it.", *_STOPS,
        up_to=after(lambda result: (result[0] + (result[1] or ""), result[1]))),
)  # fmt: skip


@breaks("whole", *_ENDED, row="failed-is-typed")
def CutIsToldAsWhole(original: Original) -> Any:
    """Tells of an answer that was cut that it came to its end."""
    return _deep(original(), _whole)


@breaks("events", *_ENDED[:3])
def StreamsTellNoCut(original: Original) -> Any:
    """Tells at the end of a stream that the answer came to its end."""
    return _streamed(original(), _whole)


@breaks("whole", *_USAGE)
def EndIsNotUsed(original: Original) -> Any:
    """Does not count the token that ends an answer."""
    names = ("completion_tokens", "output_tokens")
    return _deep(original(), lambda said: {key: one - 1 if key in names else one for key, one in said.items()})


@breaks("whole", *_USAGE)
def PromptsUseNothing(original: Original) -> Any:
    """Counts no token of the prompt."""
    names = ("prompt_tokens", "input_tokens")
    return _deep(original(), lambda said: {key: 0 if key in names else one for key, one in said.items()})


@breaks("whole", *(f"endpoint.answers.usage.{form}" for form in ("chat", "completions", "responses")))
def TotalIsOfTheAnswers(original: Original) -> Any:
    """Tells as the total what the answers took."""
    told = original()
    used = told["usage"]
    made = used.get("completion_tokens", used.get("output_tokens"))
    return {**told, "usage": {**used, "total_tokens": made} if "total_tokens" in used else used}


@breaks("whole", "endpoint.answers.usage.chat", "endpoint.answers.usage.completions")
def UsageOfTheFirst(original: Original, made: Any) -> Any:
    """Counts the first of several answers."""
    told, count = original(), len(made[0].generation.output_ids)
    used = told["usage"]
    return {**told, "usage": {**used, "completion_tokens": count} if "completion_tokens" in used else used}


@breaks("whole", "endpoint.sessions.told")
def LastAnswerIsToldFirst(original: Original, path: Any, num_prompt: Any, made: Any, wanted: Any) -> Any:
    """Tells several answers in the order from the last to the first."""
    return original(path, num_prompt, made[::-1], wanted)


@breaks("whole", "endpoint.answers.choices", row="logprob-gap")
def LogprobsOfAnother(original: Original) -> Any:
    """Tells with each of several answers the log-probs of the one before."""
    told = original()
    choices = told.get("choices", [])
    given = [one["logprobs"] for one in choices]
    return (
        {**told, "choices": [{**one, "logprobs": given[at - 1]} for at, one in enumerate(choices)]} if given else told
    )


@breaks("whole", "endpoint.versions.logprobs", row="logprob-gap")
def LogprobOfTheEndUntold(original: Original) -> Any:
    """Leaves out the log-prob of the token that ends an answer."""
    names = ("content", "token_logprobs")

    def shorter(said: dict[str, Any]) -> dict[str, Any]:
        return {key: one[:-1] if key in names and isinstance(one, list) else one for key, one in said.items()}

    told = copy.deepcopy(original())
    for one in told.get("choices", []):
        one["logprobs"] = one["logprobs"] and shorter(one["logprobs"])
    return told


@breaks("events", "endpoint.answers.choices")
def StreamsMixChoices(original: Original) -> Any:
    """Streams all of several answers under one index."""
    return _streamed(original(), lambda said: {**said, "index": 0} if "finish_reason" in said else said)


@breaks("events", *(f"endpoint.tokens.tools.{form}" for form in _DIALOGUES))
def StreamedCallsRenamed(original: Original) -> Any:
    """Tells calls of a stream without their arguments."""
    given: dict[str, Any] = {"arguments": "{}", "input": {}, "partial_json": "{}"}
    return _streamed(original(), lambda said: {key: given.get(key, one) for key, one in said.items()})


_BLANK = re.compile(r'"(?:content|text|delta|thinking|partial_json|arguments)": "(?:\s|\\[nt])+"')


@breaks("events", *(f"endpoint.streams.whole.{form}" for form in _FORMS))
def BlankPiecesLeftOut(original: Original) -> Any:
    """Leaves out the pieces of a stream that are white space."""
    return [event for event in original() if not _BLANK.search(event)]
