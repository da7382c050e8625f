"""Variants: options for the block alone, and what they have to show."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import attrs
import pytest

from areal_conformance.adapter import Bounds, Variant
from areal_conformance.benches.base import Bench
from areal_conformance.benches.static import StaticBench
from areal_conformance.checks import checks_in
from areal_conformance.checks.static.options import accounted
from areal_conformance.outcome import Violation
from areal_conformance.target import Locator, locate
from areal_conformance.varied import at_bounds, differ, given, made_again, shown


def bench_with(**variants: Variant) -> Bench:
    target = locate(Locator(role="infer", name="reference"))
    return Bench(attrs.evolve(target, adapter=attrs.evolve(target.adapter, variants=variants)))


def room(bench: Bench) -> Any:
    """Give the options that are built with, in the place of an engine."""
    return given(bench.case().options)


def test_a_variant_is_of_the_block() -> None:
    """Inside, its options stand under every check's; after an error they are gone."""
    bench = bench_with(small=Variant(options={"cache_gib": 0.5}))

    with pytest.raises(KeyError), bench.varied("small"):
        assert bench.case().options["cache_gib"] == 0.5
        raise KeyError

    assert "cache_gib" not in bench.case().options


def test_what_shows_nothing_is_told_with_its_options() -> None:
    """An option whose effect is the same with and without it is one that nobody obeys."""
    bench = bench_with(small=Variant(options={"cache_gib": 0.5}, shows=lambda _options: 4))

    with pytest.raises(Violation, match=r"cache_gib.*small.*do nothing"):
        asyncio.run(shown(bench, lambda: room(bench)))


def test_what_shows_may_be_awaited() -> None:
    """A function that asks an engine is a coroutine function."""

    async def shows(options: dict[str, Any]) -> Any:
        return options.get("cache_gib")

    bench = bench_with(small=Variant(options={"cache_gib": 0.5}, shows=shows))

    asyncio.run(shown(bench, lambda: room(bench)))


def test_what_an_option_must_show_is_compared() -> None:
    """An effect that is not the one the adapter tells of is half of what the option says."""
    small = Variant(options={"cache_gib": 0.5}, shows=lambda options: options.get("cache_gib"), gives=0.25)
    bench = bench_with(small=small)

    with pytest.raises(Violation, match=r"cache_gib.*small.*0\.5, not 0\.25"):
        asyncio.run(shown(bench, lambda: room(bench)))


@pytest.mark.parametrize(
    ("shown", "told"),
    [([2, 2], ""), ([2, 1], "do nothing.* 1 with them and without"), ([2, 3], "what shows is 3, not 2")],
)
def test_of_several_ranks_each_shows_what_its_options_do(shown: list[int], told: str) -> None:
    """One rank on which they do nothing, or something else, is enough."""
    variant = Variant(options={"stages": 2}, layouts=("p2",), shows=len, gives=2)

    with pytest.raises(Violation, match=told) if told else contextlib.nullcontext():
        differ("stages", variant, [1, 1], shown)


@pytest.mark.parametrize(
    ("variant", "fails"),
    [
        (Variant(options={"cache_gib": 0.5}), True),
        (Variant(options={"cache_gib": 0.5}, unseen=" "), True),
        (Variant(options={"cache_gib": 0.5}, unseen="it is speed alone"), False),
        (Variant(options={"cache_gib": 0.5}, shows=len), False),
    ],
)
def test_a_variant_shows_what_it_does_or_says_why_nothing_does(variant: Variant, fails: bool) -> None:
    """What is only made again passes where the options are ignored."""
    target = locate(Locator(role="infer", name="reference"))
    rest = dict.fromkeys(("deterministic", "kv_on_update", "prefill_tokens"), "another shows it")
    adapter = attrs.evolve(target.adapter, variants={"one": variant}, without_effect=rest)
    bench = StaticBench(attrs.evolve(target, adapter=adapter))

    with pytest.raises(Violation, match="variants one") if fails else contextlib.nullcontext():
        accounted.body(bench)


def test_checks_are_not_made_again_where_a_variant_says_so() -> None:
    """Its options may end what a check does."""
    bench = bench_with(small=Variant(options={"cache_gib": 0.5}, again=False, checks=("infer.close.twice",)))
    asked: list[str] = []
    bench.find = lambda key: asked.append(key)
    bench.begin(next(iter(checks_in("infer").values())))

    asyncio.run(made_again(bench, ("infer.output.greedy",)))

    assert not asked


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        (Bounds(takes=(1e-9,), refuses=(0.0, -1.0)), ""),
        (Bounds(takes=(0.0,)), r"cache_gib may be 0\.0, and is refused"),
        (Bounds(refuses=(1e-9,)), "cache_gib may not be 1e-09, and is taken"),
    ],
)
def test_an_option_ends_where_the_adapter_says(bounds: Bounds, told: str) -> None:
    """The last value it takes and the first it refuses are both looked at."""
    bench = bench_with()
    bench.target = attrs.evolve(bench.target, adapter=attrs.evolve(bench.target.adapter, bounds={"cache_gib": bounds}))

    with pytest.raises(Violation, match=told) if told else contextlib.nullcontext():
        at_bounds(bench)
