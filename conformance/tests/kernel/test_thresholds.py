"""Sizes that an adapter declares: made small for a check, and as they were after it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from areal_conformance.adapter import Threshold
from areal_conformance.benches.base import Bench, around
from areal_conformance.outcome import HarnessError
from areal_conformance.target import Locator, locate
from areal_reference.infer import loop
from areal_torch import logprobs


def bench_with(*thresholds: Threshold) -> Bench:
    target = locate(Locator(role="infer", name="reference"))
    return Bench(attrs.evolve(target, adapter=attrs.evolve(target.adapter, thresholds=thresholds)))


def test_around_has_both_sides_and_a_short_third_piece() -> None:
    """One less, as many, one more, and twice as many and one."""
    assert around(8) == (7, 8, 9, 17)


def test_a_place_is_set_for_the_block_and_put_back() -> None:
    """The number in the source is the declared one inside, and what it was after an error."""
    before = logprobs.CHUNK_ELEMENTS
    bench = bench_with(Threshold(counts="logits", at=320, place="areal_torch.logprobs:CHUNK_ELEMENTS"))

    with pytest.raises(KeyError), bench.crossing("logits") as sizes:
        assert (320, sizes) == (logprobs.CHUNK_ELEMENTS, (319, 320, 321, 641))
        raise KeyError

    assert before == logprobs.CHUNK_ELEMENTS


def test_options_reach_what_is_built_and_no_other_count_does() -> None:
    """Options of the thresholds that are crossed stand under every check's; those of others do not."""
    many: tuple[Any, ...] = (
        Threshold(counts="prompt", at=7, options={"prefill_tokens": 7}),
        Threshold(counts="length", at=64, options={"cache_gib": 0.5}),
    )
    bench = bench_with(*many)

    with bench.crossing("prompt"):
        assert bench.case().options["prefill_tokens"] == 7
        assert "cache_gib" not in bench.case().options

    assert "prefill_tokens" not in bench.case().options


def test_without_a_declared_size_the_default_is_crossed_and_none_without_one() -> None:
    """A backend that declares nothing is still asked for what real work asks for."""
    bench = bench_with()

    with bench.crossing("requests", 8) as some, bench.crossing("logits") as none:
        assert (some, none) == ((7, 8, 9, 17), ())


def test_a_place_that_is_not_there_is_no_failure_of_the_backend() -> None:
    """A threshold whose number has moved makes an error that names it, not a check that crosses nothing."""
    bench = bench_with(Threshold(counts="logits", at=320, place="areal_torch.logprobs:MOVED"))

    with pytest.raises(HarnessError, match=r"logprobs:MOVED"), bench.crossing("logits"):
        pass


def test_of_several_sizes_to_choose_from_one_is_left() -> None:
    """A tuple stays a tuple: what chooses from it has no other choice inside."""
    before = loop.TILES
    bench = bench_with(Threshold(counts="requests", at=3, place="areal_reference.infer.loop:TILES"))

    with bench.crossing("requests"):
        assert loop.TILES == (3,)

    assert before == loop.TILES
