"""Which models of the zoo a backend is checked with: what it claims of them, and how many.

Knows: an adapter's words on architectures and traits, the sizes of samples.
Does not know: checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from areal_conformance.adapter import Adapter
from areal_conformance.target import Target
from areal_conformance.zoo.architectures import ARCHITECTURES, BIASED_HEADS
from areal_conformance.zoo.covering import covering
from areal_conformance.zoo.traits import COMMON, OPTIONAL, Drawn

FEW, FURTHER = 5, 3
"""Models of each family of `Adapter.models`, so that about every value of every axis occurs, and of each other one."""


def count(target: Target, architecture: str) -> int:
    """Return how many models of a claimed family a target is checked with: what the run asks for, else a few.

    One where engines start slowly.
    """
    if target.locator.zoo:
        return target.locator.zoo
    if target.adapter.slow_start:
        return 1
    return FEW if architecture in target.adapter.models else FURTHER


def claims(adapter: Adapter, architecture: str) -> bool:
    """Tell whether a backend says that it takes models of this type."""
    return architecture in (*adapter.models, *adapter.architectures)


def claimed(target: Target, architecture: str) -> Iterator[Drawn]:
    """Yield models that a backend says it takes, covering every value first and pairs of values then."""
    adapter = target.adapter
    if not claims(adapter, architecture):
        return
    axes = {
        axis: kept
        for axis, values in ARCHITECTURES[architecture].axes.items()
        if (kept := [value for value in values if _allowed(adapter, axis, value)])
    }
    for number, values in enumerate(islice(covering(axes), count(target, architecture))):
        yield Drawn(architecture, values, seed=number, head_dim=_head_dim(adapter))


def with_biased_heads(target: Target) -> list[Drawn]:
    """Return a model of each claimed family that adds a bias to its logits."""
    return [model for family in BIASED_HEADS for model in islice(claimed(target, family), 1)]


def unclaimed(target: Target, architecture: str) -> Iterator[Drawn]:
    """Yield models a backend does not say that it takes: a trait each that is not named, or some of an unnamed type.

    None where engines start slowly, unless the run asks for the zoo.
    """
    adapter = target.adapter
    if adapter.slow_start and not target.locator.zoo:
        return
    axes = ARCHITECTURES[architecture].axes
    plain = {
        axis: next((value for value in values if (axis, value) not in OPTIONAL), values[0])
        for axis, values in axes.items()
    }
    if not claims(adapter, architecture):
        yield Drawn(architecture, {axis: values[0] for axis, values in axes.items()}, head_dim=_head_dim(adapter))
        for axis, value in OPTIONAL:
            if axis not in COMMON and value in axes.get(axis, ()) and value != axes[axis][0]:
                yield Drawn(architecture, {**plain, axis: value}, head_dim=_head_dim(adapter))
        return
    for (axis, value), trait in OPTIONAL.items():
        if value in axes.get(axis, ()) and trait not in adapter.traits:
            yield Drawn(architecture, {**plain, axis: value}, head_dim=_head_dim(adapter))


def _allowed(adapter: Adapter, axis: str, value: str) -> bool:
    trait = OPTIONAL.get((axis, value))
    return trait is None or trait in adapter.traits


def _head_dim(adapter: Adapter) -> int:
    return int(adapter.tiny.get("head_dim", 0))


def unnamed(model: Drawn) -> str:
    """Return the note on a model that is not claimed and works."""
    what = ", ".join(sorted(model.traits)) or f"the architecture {model.architecture}"
    return f"{model.architecture}: {what} works and is not claimed: name it in the adapter"
