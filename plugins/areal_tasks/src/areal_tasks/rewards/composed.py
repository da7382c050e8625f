"""A weighted sum of rewards, each by its registered name and with its own options.

    parts:
      format: {name: format, weight: 0.2, at_least: 1.0}
      correct: {name: math_verify}

Knows: weights, which part ends the others, and how the failure of a part is told.
Does not know: how a part is called or judged (the extension `reward_scorer`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from attrs import define, evolve, field, frozen, validators

from areal_core.contract.errors import ConfigError, EngineMissing, RewardFailed
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.plugins.extensions import extension
from areal_core.plugins.install import pip_install
from areal_core.plugins.registry import current_registry
from areal_core.plugins.structure import structure
from areal_tasks.rewards.finished import HasParts, ReadsColumns

_PATH: ContextVar[str] = ContextVar("where the options of a composed reward stand", default="rollout.reward.options")
_NAME = re.compile(r"\w[\w.-]*")


@frozen(kw_only=True)
class PartConfig:
    """One part: a reward by registered name, and what it counts.

    Example: {name: format, weight: 0.2, at_least: 1.0, options: {tags: [think, answer]}}
    """

    name: str
    """Registered name of the reward."""
    weight: float = field(default=1.0, validator=[validators.gt(float("-inf")), validators.lt(float("inf"))])
    """What its value is multiplied by."""
    options: Mapping[str, Any] = field(factory=dict)  # Any: checked against the reward's own config class
    """The reward's own keys."""
    at_least: float | None = None
    """A value below this ends it: the whole is `otherwise`, and the parts after this one are not asked."""


@frozen(kw_only=True)
class ComposedConfig:
    """Options of `composed`."""

    parts: Mapping[str, Mapping[str, Any]] = field(validator=validators.min_len(1))  # Any: as `PartConfig`
    """Name -> a part: its `name`, `weight` (1.0), `options`, and `at_least`. They are asked in this order, and the
    value of each is a component of its name."""
    otherwise: float = 0.0
    """The whole where a part gives less than its `at_least`."""

    def __attrs_post_init__(self) -> None:
        registry = current_registry()
        for name, part, path in self.read():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{path}: {name!r} is no name of a part",
                    why="metrics are named after it: letters, digits, '_', '-' and '.'",
                    fix="for example correct",
                )
            registry.check_engine("reward", part.name)
            with _at(f"{path}.options"):
                registry.options("reward", part.name, part.options, f"{path}.options")

    def read(self) -> Iterator[tuple[str, PartConfig, str]]:
        """Yield name, part and key of every part.

        Raises:
            UnknownKey, WrongType: a part is none.
        """
        for name, part in self.parts.items():
            path = f"{_PATH.get()}.parts.{name}"
            yield str(name), structure(PartConfig, part, path), path


class Scorer(Protocol):
    """A reward function as the extension `reward_scorer` makes it: of any form, judged, never raising."""

    @property
    def batching(self) -> Batching: ...
    def __call__(self, values: Sequence[RewardInput]) -> list[RewardResult]: ...


class Batching(Protocol):
    """How many completions a function is asked about at once, and how long the first waits for others."""

    @property
    def size(self) -> int: ...
    @property
    def wait_s(self) -> float: ...


@frozen
class _Part:
    config: PartConfig
    function: Callable[..., object]
    scorer: Scorer


@define
class _Sum:
    """The reward of one completion, part by part."""

    result: RewardResult = RewardResult(value=0.0)
    ended: bool = False

    def add(self, name: str, part: PartConfig, found: RewardResult, otherwise: float) -> None:
        """Add the result of a part; a failed one is the failure of the whole."""
        if found.status != RewardStatus.OK or found.value is None:
            self.result = evolve(
                found, value=None, components={}, detail=f"part {name!r} ({part.name}): {found.detail}"
            )
            self.ended = True
            return
        components = {f"{name}/{key}": each for key, each in found.components.items()}
        self.ended = part.at_least is not None and found.value < part.at_least
        value = otherwise if self.ended else (self.result.value or 0.0) + part.weight * found.value
        self.result = RewardResult(value=value, components={**self.result.components, name: found.value, **components})


class Composed:
    """Sums what its parts give. It is asked about as many completions at once as the part that takes most."""

    def __init__(self, config: ComposedConfig) -> None:
        """Build the parts, once per reward process.

        Raises:
            RewardFailed: one cannot be called.
            EngineMissing: nothing here calls reward functions.
        """
        self._config = config
        registry, scorer = current_registry(), _scorer()
        self._parts: dict[str, _Part] = {}
        for name, part, path in config.read():
            with _at(f"{path}.options"):
                function = registry.build("reward", part.name, part.options, f"{path}.options")
            if not callable(function):
                raise RewardFailed(
                    f"reward {part.name!r} of {path} cannot be called", why=f"it is a {type(function).__name__}"
                )
            self._parts[name] = _Part(part, function, scorer(function))
        every = [part.scorer.batching for part in self._parts.values()]
        self.batch_size = max(each.size for each in every)
        self.batch_wait_s = max(each.wait_s for each in every)

    def parts(self) -> Mapping[str, object]:
        """Return the reward functions by the names of their parts; those of a composed part are named after both."""
        found: dict[str, object] = {}
        for name, part in self._parts.items():
            function: object = part.function
            inner = function.parts() if isinstance(function, HasParts) else {}
            found |= {f"{name}/{key}": each for key, each in inner.items()} or {name: function}
        return found

    def columns(self) -> Sequence[str]:
        """Return the columns that its parts say they read."""
        functions: list[object] = [part.function for part in self._parts.values()]
        return [column for each in functions if isinstance(each, ReadsColumns) for column in each.columns()]

    def __call__(self, batch: Sequence[RewardInput]) -> Sequence[RewardResult]:
        """Return the sum for each. Called in a reward process; fails as the first part that fails."""
        sums = [_Sum() for _ in batch]
        for name, part in self._parts.items():
            left = [place for place, each in enumerate(sums) if not each.ended]
            results = part.scorer([batch[place] for place in left])
            for place, found in zip(left, results, strict=True):
                sums[place].add(name, part.config, found, self._config.otherwise)
        return [each.result for each in sums]


def _scorer() -> Callable[[Callable[..., object]], Scorer]:
    found: Callable[[Callable[..., object]], Scorer] | None = extension("reward_scorer")
    if found is None:
        raise EngineMissing(
            "a composed reward needs the extension 'reward_scorer'",
            why="no installed package offers it",
            fix=pip_install("areal-core[local]"),
        )
    return found


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Be where the options of a part stand, for a composed reward among the parts."""
    before = _PATH.set(path)
    try:
        yield
    finally:
        _PATH.reset(before)
