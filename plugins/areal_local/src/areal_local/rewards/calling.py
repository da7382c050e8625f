"""The forms a reward function may have, and what each is called with.

    def reward(prompt, completion, completion_ids, stop_reason, row): ...     one completion; any of these, or a row's
    def reward(completion, answer): ...                                       columns by their names
    def reward(completions, **columns): return [...]                          lists, as trl calls one; here of length 1

Knows: parameters, and that lists hold one completion.
Does not know: what becomes of what is returned (`child`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import attrs

from areal_core.contract.errors import RewardFailed
from areal_core.contract.workflow import RewardInput

OURS = tuple(field.name for field in attrs.fields(RewardInput))
_LISTS = ("prompts", "completions")
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def takes_lists(function: Callable[..., object]) -> bool:
    """Tell whether a reward function is one that scores lists of completions."""
    return any(name in _LISTS for name in _parameters(function))


def adapted(function: Callable[..., object]) -> Callable[..., object]:
    """Return a reward function that takes all of `RewardInput` as keywords, whatever it names itself."""
    found = _parameters(function)
    if not found or (not takes_lists(function) and _open(found, OURS) and not _needed(found, OURS)):
        return function

    @wraps(function)
    def call(**given: Any) -> object:  # Any: as `RewardInput`
        value = RewardInput(**given)
        returned = function(**arguments(function, value))
        return _only(returned) if takes_lists(function) else returned

    return call


def arguments(function: Callable[..., object], value: RewardInput) -> Mapping[str, object]:
    """Return what a reward function is called with.

    Raises:
        RewardFailed: it needs something that neither the completion nor its row has.
    """
    found = _parameters(function)
    offered = _lists(value) if takes_lists(function) else {**value.row, **_plain(value)}
    if missing := _needed(found, offered):
        raise RewardFailed(
            f"the reward function needs {', '.join(map(repr, missing))}",
            why=f"there are {', '.join(map(str, offered))}",
            fix="name it as a column of the row, give it a default, or map the column with data.options.columns",
        )
    whatever = any(each.kind is each.VAR_KEYWORD for each in found.values())
    more = (offered if takes_lists(function) else _plain(value)) if whatever else {}
    return {**more, **{name: each for name, each in offered.items() if name in found}}


def _plain(value: RewardInput) -> dict[str, object]:
    return {name: getattr(value, name) for name in OURS}


def _lists(value: RewardInput) -> dict[str, object]:
    """Return one completion as lists of one; of a conversation prompt and completion are messages."""
    row = {str(name): [each] for name, each in value.row.items() if name not in ("prompt", "completion")}
    talk = next((value.row[name] for name in ("messages", "prompt") if name in value.row), None)
    prompt, completion = value.prompt, value.completion
    if isinstance(talk, Sequence) and not isinstance(talk, str):
        messages = [{"role": "assistant", "content": completion}]
        return {**row, "prompts": [talk], "completions": [messages], "completion_ids": [value.completion_ids]}
    return {**row, "prompts": [prompt], "completions": [completion], "completion_ids": [value.completion_ids]}


def _only(returned: Any) -> object:  # Any: whatever the user's function returns
    values = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if len(values) != 1:
        raise RewardFailed(
            "a reward function of lists returned no list of one number",
            why=f"it was asked about one completion, and returned {str(returned)[:100]!r}",
            fix="return a list with a number for every completion",
        )
    return values[0]


def _parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in another language: it is called as it is
        return {}


def _open(found: Mapping[str, inspect.Parameter], names: Sequence[str]) -> bool:
    """Tell whether all the names can be given."""
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        return True
    return all(name in found and found[name].kind in _KEYWORDS for name in names)


def _needed(found: Mapping[str, inspect.Parameter], offered: Iterable[str]) -> list[str]:
    """Return the parameters without a default that nothing is there for."""
    given = set(offered)
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    wanted = {name: each for name, each in found.items() if each.kind not in variable}
    return [name for name, each in wanted.items() if each.default is each.empty and name not in given]
