"""What runs in a reward process: find the function by name, call it, judge what it returns.

Knows: one reward function per process, how its result becomes a `RewardResult`.
Does not know: deadlines (the parent kills this process) or who asks.
"""

from __future__ import annotations

import math
import numbers
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from areal_core.contract.errors import ArealError
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.plugins.blame import told
from areal_core.plugins.registry import Registry
from areal_core.worker import watchdog


@frozen(kw_only=True)
class RewardTarget:
    """Which reward function, as it travels to the process: name, options and the user's files, never code."""

    name: str
    options: Mapping[str, Any]  # Any: checked against the reward's own config class
    imports: tuple[str, ...] = ()


@frozen
class Resolved:
    """The function of this process, or why there is none: (error class, what, why, fix)."""

    function: Callable[..., object] | None
    error: tuple[str, str, str, str] | None


_resolved: Resolved | None = None  # a reward process is born for one function and keeps it


def start(target: RewardTarget, parent: int) -> None:
    """Prepare the process: die with the parent, ignore Ctrl-C, resolve the function. Called once, first."""
    global _resolved
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watchdog.die_with_parent(parent)
    _resolved = resolve(target)


def resolve(target: RewardTarget) -> Resolved:
    """Build the reward function from its name; an error is returned, so that it can be told to the parent."""
    try:
        registry = Registry()
        for path in target.imports:
            registry.add_file(path)
        function = registry.build("reward", target.name, target.options, "rollout.reward.options")
    except ArealError as exc:
        return Resolved(None, (type(exc).__name__, exc.what, exc.why, exc.fix))
    except Exception as exc:
        return Resolved(None, ("RewardFailed", f"reward {target.name!r} cannot be built", told(exc), ""))
    if not callable(function):
        what = f"reward {target.name!r} gave {type(function).__name__}, which cannot be called"
        return Resolved(None, ("RewardFailed", what, "a reward's factory returns the reward function", ""))
    return Resolved(function, None)


def check() -> tuple[str, str, str, str] | None:
    """Return why there is no reward function, or None. The warm-up call."""
    assert _resolved is not None, "start runs first"
    return _resolved.error


def score(value: RewardInput) -> RewardResult:
    """Call the reward function and judge its result; never raises for what the function does."""
    assert _resolved is not None and _resolved.function is not None, "check runs first"
    began = time.perf_counter()
    try:
        returned = _resolved.function(
            prompt=value.prompt,
            completion=value.completion,
            completion_ids=value.completion_ids,
            stop_reason=value.stop_reason,
            row=value.row,
        )
        result = judge(returned)
    except Exception as exc:
        result = RewardResult(value=None, status=RewardStatus.RAISED, detail=told(exc))
    return evolve(result, seconds=time.perf_counter() - began)


def score_all(values: Sequence[RewardInput]) -> list[RewardResult]:
    """Call `score` on each; one trip for many quick rewards."""
    return [score(value) for value in values]


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
