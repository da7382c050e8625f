"""Variants: options for the block alone, and what they have to show."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from areal_conformance.adapter import Variant
from areal_conformance.benches.base import Bench
from areal_conformance.outcome import Violation
from areal_conformance.target import Locator, locate
from areal_conformance.varied import given, shown


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
