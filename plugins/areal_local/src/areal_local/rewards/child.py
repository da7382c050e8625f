"""A reward function in its process: find the function by name, call it, judge what it returns.

Knows: one reward function per process, how its result becomes a `RewardResult`.
Does not know: deadlines (the controller kills this process), or how it is asked (`process_main`).
"""

from __future__ import annotations

import math
import numbers
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from areal_core.contract.errors import ArealError
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.plugins.blame import told
from areal_core.plugins.registry import Registry
from areal_local.rewards.calling import adapted, answers, batching, shape


@frozen(kw_only=True)
class RewardTarget:
    """Which reward function, as it travels to the process: name, options and the user's files, never code."""

    name: str
    options: Mapping[str, Any]  # Any: checked against the reward's own config class
    imports: tuple[str, ...] = ()


@frozen
class Resolved:
    """The function of this process, or why there is none: (error class, what, why, fix)."""

    scorer: Scorer | None
    error: tuple[str, str, str, str] | None


def resolve(target: RewardTarget) -> Resolved:
    """Build the reward function from its name; an error is returned, so that it can be told to the parent."""
    try:
        registry = Registry()
        for path in target.imports:
            registry.add_file(path)
        function = registry.build("reward", target.name, target.options, "rollout.reward.options")
        if callable(function):
            return Resolved(Scorer(function), None)
    except ArealError as exc:
        return Resolved(None, (type(exc).__name__, exc.what, exc.why, exc.fix))
    except (Exception, SystemExit) as exc:
        return Resolved(None, ("RewardFailed", f"reward {target.name!r} cannot be built", told(exc), ""))
    what = f"reward {target.name!r} gave {type(function).__name__}, which cannot be called"
    return Resolved(None, ("RewardFailed", what, "a reward's factory returns the reward function", ""))


class Scorer:
    """A reward function of any form, asked about any number of completions. The extension `reward_scorer`.

    Each completion gets its own result, the one it would get alone: where a call about several of them raises, each
    is asked about alone.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        """Read the form of the function.

        Raises:
            RewardFailed: it says of itself how many completions it takes, and that is no number.
        """
        self.batching = batching(function)
        self._function, self._alone = function, adapted(function)

    def __call__(self, values: Sequence[RewardInput]) -> list[RewardResult]:
        """Score completions, in their order; never raises for what the function does."""
        results: dict[int, RewardResult] = {}
        for places in self._calls(values):
            together = [values[place] for place in places]
            found = self._together(together) or [score(self._alone, value) for value in together]
            results.update(zip(places, found, strict=True))
        return [results[place] for place in range(len(values))]

    def _calls(self, values: Sequence[RewardInput]) -> Iterator[Sequence[int]]:
        """Yield the places of completions that one call is about."""
        size = self.batching.size
        alike: dict[object, list[int]] = defaultdict(list)
        for place, value in enumerate(values):
            alike[shape(value) if size > 1 else None].append(place)
        for places in alike.values():
            yield from (places[first : first + size] for first in range(0, len(places), size))

    def _together(self, values: Sequence[RewardInput]) -> list[RewardResult]:
        """Return what one call says of several completions, nothing if it raises: one of them may be why."""
        began = time.perf_counter()
        try:
            found = answers(self._function, values) if len(values) > 1 else []
        except BaseException:  # as in `score`
            return []
        return [_ended(judge(each), began) for each in found]


def score(function: Callable[..., object], value: RewardInput) -> RewardResult:
    """Call the reward function and judge its result; never raises for what the function does, `sys.exit` included."""
    began = time.perf_counter()
    try:
        result = judge(
            function(
                prompt=value.prompt,
                completion=value.completion,
                completion_ids=value.completion_ids,
                stop_reason=value.stop_reason,
                row=value.row,
            )
        )
    except BaseException as exc:  # SystemExit, KeyboardInterrupt, GeneratorExit: a reward that failed, not a stop
        result = RewardResult(value=None, status=RewardStatus.RAISED, detail=told(exc))
    return _ended(result, began)


def _ended(result: RewardResult, began: float) -> RewardResult:
    detail = result.detail.encode(errors="backslashreplace").decode()  # the controller is told in plain UTF-8
    return evolve(result, detail=detail, seconds=time.perf_counter() - began)


def judge(returned: object) -> RewardResult:
    """Turn what a reward function returned into a result.

    A finite number (bool and int count), a `RewardResult`, or a mapping with a number under "value"
    whose other entries are components. Anything else is invalid.
    """
    if isinstance(returned, RewardResult):
        if returned.status != RewardStatus.OK:
            return evolve(returned, value=None)
        return _result(returned.value, returned.components, returned.detail)
    if isinstance(returned, Mapping):
        components = {str(name): part for name, part in returned.items() if name != "value"}
        return _result(returned.get("value"), components, "")
    return _result(returned, {}, "")


def _result(value: object, components: Mapping[str, object], detail: str) -> RewardResult:
    parts: dict[str, float] = {}
    for name, part in (("value", value), *components.items()):
        number = _finite(part)
        if number is None:
            shown = f"{name} is {part!r}, of type {type(part).__name__}"[:200]
            return RewardResult(value=None, status=RewardStatus.INVALID, detail=f"not a finite number: {shown}")
        parts[name] = number
    return RewardResult(value=_finite(value), components={name: parts[name] for name in components}, detail=detail)


def _finite(value: object) -> float | None:
    if not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
