"""The decorators of a user's own file: `@reward("mine")`, `@dataset`, `@workflow`, `@objective`, `@estimator`, ...

    from areal_core import reward

    @reward("ends_well")
    def ends_well(prompt, completion, completion_ids, stop_reason, row):
        return float(completion.endswith("."))

Knows: how to leave a mark on a function or a class.
Does not know: any registry. A mark is an attribute; `Registry.add_file` collects it from the files named by `imports:`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attrs import frozen

from areal_core.plugins.manifest import Manifest

ATTRIBUTE = "__areal__"
Marked = TypeVar("Marked", bound=Callable[..., object])


@frozen
class Mark:
    """What a decorator leaves: the role and name an object is to be known by, its options' class, its manifest."""

    role: str
    name: str
    config: type | None = None
    manifest: Manifest | None = None


def reward(name: str, *, config: type | None = None) -> Callable[[Marked], Marked]:
    """Mark a reward function; with `config`, a callable that takes its instance and returns the reward function."""
    return _leave(Mark("reward", name, config))


def dataset(name: str, *, config: type | None = None) -> Callable[[Marked], Marked]:
    """Mark a function that returns rows; it takes the options as keywords, or one instance of `config`."""
    return _leave(Mark("dataset", name, config))


def workflow(name: str, *, config: type | None = None) -> Callable[[Marked], Marked]:
    """Mark a workflow class; it is built with an instance of `config`, or with nothing."""
    return _leave(Mark("workflow", name, config))


def objective(name: str, *, config: type | None = None) -> Callable[[Marked], Marked]:
    """Mark an objective class; it is built with an instance of `config`, or with nothing."""
    return _leave(Mark("objective", name, config))


def estimator(name: str, *, config: type | None = None) -> Callable[[Marked], Marked]:
    """Mark an `Estimator`; with `config`, a callable that takes its instance and returns the estimator."""
    return _leave(Mark("estimator", name, config))


def accept(name: str) -> Callable[[Marked], Marked]:
    """Mark a function of the episodes of a finished group that tells whether it is trained on: `rollout.accept`."""
    return _leave(Mark("accept", name))


def device(name: str) -> Callable[[Marked], Marked]:
    """Mark a function without arguments that returns a `Device` of that name."""
    return _leave(Mark("device", name))


def backend(manifest: Manifest, *, config: type | None = None) -> Callable[[Marked], Marked]:
    """Mark a whole backend by its manifest: an engine, a scheduler, a transport, or whatever else makes claims.

    What is marked takes the place of the manifest's `factory`, and `config` that of its `config`. A conformance
    adapter in the same file is named by `conformance=f"{__name__}:ADAPTER"`.

    Example:
        @backend(Manifest(role="infer", name="mine", contract=(1, 1), factory="mine:Engine", claims={...}))
        class Engine: ...
    """
    return _leave(Mark(manifest.role, manifest.name, config, manifest))


def marks_of(obj: object) -> tuple[Mark, ...]:
    """Return the marks set on this very object; a subclass does not inherit those of its base."""
    found = getattr(obj, "__dict__", {}).get(ATTRIBUTE, ())
    return tuple(mark for mark in found if isinstance(mark, Mark)) if isinstance(found, tuple) else ()


def _leave(mark: Mark) -> Callable[[Marked], Marked]:
    def leave(obj: Marked) -> Marked:
        setattr(obj, ATTRIBUTE, (*marks_of(obj), mark))
        return obj

    return leave
