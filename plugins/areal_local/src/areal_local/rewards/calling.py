"""The forms a reward function may have, and what each is called with.

    def reward(prompt, completion, completion_ids, stop_reason, row): ...     one completion; any of these, or a row's
    def reward(completion, answer): ...                                       columns by their names
    def reward(completions, **columns): return [...]                          lists, as trl calls one
    def reward(batch): return [...]                                           a list of `RewardInput`
    def reward(completions, batch_size=32): return [...]                      as many at once; without it one

Knows: parameters, and how many completions lists may hold.
Does not know: who waits for others (`pool`), or what becomes of what is returned (`child`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import attrs

from areal_core.contract.errors import RewardFailed
from areal_core.contract.workflow import RewardInput

OURS = tuple(field.name for field in attrs.fields(RewardInput))
_LISTS = ("prompts", "completions", "batch")
_BATCHING = {"batch_size": 1, "batch_wait_s": 0.02}
"""Parameters of a function of lists, or attributes of an object, whose values are settings and never given."""
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@attrs.frozen(kw_only=True)
class Batching:
    """How many completions a function is asked about at once, and how long the first of them waits for the others."""

    size: int = 1
    wait_s: float = 0.0


def takes_lists(function: Callable[..., object]) -> bool:
    """Tell whether a reward function is one that scores lists of completions."""
    return any(name in _LISTS for name in _parameters(function))


def batching(function: Callable[..., object]) -> Batching:
    """Return what a reward function says of itself: one completion at a time, unless it takes lists and says more.

    Raises:
        RewardFailed: it says something else than numbers.
    """
    if not takes_lists(function):
        return Batching()
    found = _parameters(function)
    size, wait_s = (
        getattr(function, name, found[name].default if name in found else default)
        for name, default in _BATCHING.items()
    )
    if type(size) is not int or size < 1 or not isinstance(wait_s, int | float) or not 0 <= wait_s < math.inf:
        raise RewardFailed(
            f"the reward function has batch_size={size!r} and batch_wait_s={wait_s!r}",
            why="it is asked about batch_size completions at once, and the first waits batch_wait_s seconds for others",
            fix="give the parameters defaults such as batch_size=32, batch_wait_s=0.02",
        )
    return Batching(size=size, wait_s=float(wait_s))


def adapted(function: Callable[..., object]) -> Callable[..., object]:
    """Return a reward function that takes all of `RewardInput` as keywords, whatever it names itself."""
    found, lists = _parameters(function), takes_lists(function)
    if not found or (not lists and _open(found, OURS) and not _needed(found, OURS)):
        return function

    @wraps(function)
    def call(**given: Any) -> object:  # Any: as `RewardInput`
        value = RewardInput(**given)
        return answers(function, [value])[0] if lists else function(**arguments(function, value))

    return call


def answers(function: Callable[..., object], values: Sequence[RewardInput]) -> list[object]:
    """Ask a function of lists about completions of one `shape`, and return what it says of each.

    Raises:
        RewardFailed: it says less or more, or needs something that is not there.
        Exception: whatever it raises.
    """
    returned: Any = function(**arguments(function, *values))  # Any: whatever the user's function returns
    found = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if len(found) != len(values):
        number = "one number" if len(values) == 1 else f"{len(values)} numbers"
        raise RewardFailed(
            f"a reward function of lists returned no list of {number}",
            why=f"it was asked about so many completions, and returned {str(returned)[:100]!r}",
            fix="return a list with a number for every completion",
        )
    return found


def shape(value: RewardInput) -> object:
    """Return what completions in one call of a function have in common: their columns, and whether they are talk."""
    return frozenset(value.row), _talk(value) is None


def arguments(function: Callable[..., object], *values: RewardInput) -> Mapping[str, object]:
    """Return what a reward function is called with; one that does not take lists is asked about one completion.

    Raises:
        RewardFailed: it needs something that neither the completion nor its row has.
    """
    found, lists = _parameters(function), takes_lists(function)
    plain = {} if lists else _plain(*values)
    offered = _lists(values) if lists else {**values[0].row, **plain}
    if missing := _needed(found, offered):
        raise RewardFailed(
            f"the reward function needs {', '.join(map(repr, missing))}",
            why=f"there are {', '.join(map(str, offered))}",
            fix="name it as a column of the row, give it a default, or map the column with data.options.columns",
        )
    whatever = any(each.kind is each.VAR_KEYWORD for each in found.values())
    more = {name: each for name, each in (offered if lists else plain).items() if whatever and name != "batch"}
    return {**more, **{name: each for name, each in offered.items() if name in found}}


def _plain(value: RewardInput) -> dict[str, object]:
    return {name: getattr(value, name) for name in OURS}


def _lists(values: Sequence[RewardInput]) -> dict[str, object]:
    """Return completions as lists; of a conversation prompt and completion are messages."""
    columns = [name for name in values[0].row if name not in ("prompt", "completion", *_BATCHING)]
    talks = [_talk(value) for value in values]
    return {
        **{str(name): [value.row[name] for value in values] for name in columns},
        "prompts": [value.prompt if talk is None else talk for value, talk in zip(values, talks, strict=True)],
        "completions": [
            value.completion if talk is None else [{"role": "assistant", "content": value.completion}]
            for value, talk in zip(values, talks, strict=True)
        ],
        "completion_ids": [value.completion_ids for value in values],
        "batch": list(values),
    }


def _talk(value: RewardInput) -> object | None:
    """Return the messages of a row that is a conversation."""
    talk = next((value.row[name] for name in ("messages", "prompt") if name in value.row), None)
    return talk if isinstance(talk, Sequence) and not isinstance(talk, str) else None


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
