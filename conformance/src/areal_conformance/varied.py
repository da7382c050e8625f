"""Checks made again with other options, and what those options show: `Adapter.variants`. Where options end.

Knows: how a check of a role is made inside another, on a bench whose target has more options.
Does not know: which checks those are, or what options mean.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from areal_conformance.adapter import Variant
from areal_conformance.benches.base import Bench
from areal_conformance.check import Check
from areal_conformance.outcome import Exempt, HarnessError, Inconclusive, Violation, expect
from areal_conformance.target import Target
from areal_core.contract.errors import ArealError

Built = Callable[[], AbstractAsyncContextManager[Any]]
"""Gives what the target builds, for a block. Any: the role decides."""


def of_one_process(bench: Bench) -> Mapping[str, Variant]:
    """Return the adapter's variants that need no layout."""
    return {name: one for name, one in bench.target.adapter.variants.items() if not one.layouts}


async def made_again(bench: Bench, ids: Collection[str]) -> None:
    """Make these checks, and those a variant asks for, with the options of each variant; a Violation names it."""
    own, notes = bench.check, list(bench.notes)
    for name, variant in of_one_process(bench).items():
        if not variant.again:
            continue
        with bench.varied(name):
            for check in map(bench.find, (*ids, *variant.checks)):
                if check is not None:
                    await _one(bench, check, f"with the options of the variant {name!r}, {dict(variant.options)}")
                    notes += [f"{name}: {note}" for note in bench.notes]
    bench.begin(own)
    bench.notes = notes if bench.target.adapter.variants else ["the adapter has no variants"]


async def _one(bench: Bench, check: Check, when: str) -> None:
    bench.begin(check)
    passed = False
    try:
        result = check.body(bench)
        if inspect.isawaitable(result):
            await result
        passed = True
    except Exempt:
        passed = True
    except Inconclusive as error:
        bench.notes.append(f"{check.id} is inconclusive: {error}")
    except HarnessError:
        raise
    except Violation as error:
        raise Violation(f"{when}: {check.id}: {error}", law=error.law or check.law) from error
    except Exception as error:
        told = f"{when}: {check.id}: the backend raised {type(error).__name__}: {error}"
        raise Violation(told, law=check.law) from error
    finally:
        await bench.end(passed=passed)


async def shown(bench: Bench, built: Built) -> None:
    """Expect what each variant shows to be another with its options than without, and what it says if it says so."""
    without: dict[Any, Any] = {}
    for name, variant in of_one_process(bench).items():
        if variant.shows is None:
            continue
        if variant.shows not in without:
            without[variant.shows] = await _shown(variant, built)
        with bench.varied(name):
            other = await _shown(variant, built)
        differ(name, variant, [without[variant.shows]], [other])


def differ(name: str, variant: Variant, without: Sequence[Any], shown: Sequence[Any]) -> None:
    """Expect what a variant shows, on each rank, to be another than without, and what it says. Any: as it returns."""
    options = dict(variant.options)
    for plain, other in zip(without, shown, strict=True):
        told = f"the options {options} of the variant {name!r} are accepted and do nothing"
        expect(plain != other, f"{told}: what they should show is {plain!r:.300} with them and without")
        if variant.gives is not None:
            told = f"with the options {options} of the variant {name!r} what shows is"
            expect(other == variant.gives, f"{told} {other!r:.300}, not {variant.gives!r:.300}")


async def _shown(variant: Variant, built: Built) -> Any:  # Any: whatever can be compared
    assert variant.shows is not None
    async with built() as one:
        found = variant.shows(one)
        return await found if inspect.isawaitable(found) else found


def at_bounds(bench: Bench) -> None:
    """Expect options to take the values at their bounds, and to refuse by name those beyond; nothing is built."""
    for option, bounds in bench.target.adapter.bounds.items():
        for value in bounds.takes:
            error = _refusal(bench.target, option, value)
            expect(error is None, f"the option {option} may be {value!r}, and is refused: {error}")
        for value in bounds.refuses:
            error = _refusal(bench.target, option, value)
            expect(error is not None, f"the option {option} may not be {value!r}, and is taken")
            expect(option in str(error), f"{value!r} is refused without the name of the option, {option}: {error}")


def _refusal(target: Target, option: str, value: Any) -> ArealError | None:  # Any: as it stands in yaml
    try:
        target.registry.options(target.role, target.name, {**target.options(), option: value})
    except ArealError as error:
        return error
    return None


@contextmanager
def having(bench: Bench, options: Mapping[str, Any]) -> Iterator[None]:
    """Let what is built in the block have these options too. Any: as they stand in yaml."""
    whole = bench.target
    bench.target = whole.varied(options)
    try:
        yield
    finally:
        bench.target = whole


@asynccontextmanager
async def given(one: Any) -> AsyncIterator[Any]:
    """Give something that nobody has to let go. Any: whatever was built."""
    yield one
