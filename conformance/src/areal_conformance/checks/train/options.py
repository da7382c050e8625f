"""Options of a trainer change what they say, and no number: its checks again with each variant of the adapter.

Knows: which checks see most of a trainer in little time; on two ranks, that several with an option are one without.
Does not know: what an option means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.ranks_state import same_after_load
from areal_conformance.checks.train.ranks_steps import as_on_one_rank, scored_as_on_one_rank
from areal_conformance.ranks.layouts import EVEN, FEW, UNEVEN, layout_of
from areal_conformance.varied import at_bounds, made_again, shown

_CHECKS = (
    "train.forward.any_mask",
    "train.step.gradient_masks",
    "train.step.clipping",
    "train.send.current",
    "train.state.exact",
)
_SMALL = {"max_tokens_per_microbatch": 15}
rule = partial(check, level=Level.SINGLE, law=6, spec="train#start", deadline_s=240.0)


@rule("train.options.checks")
async def again(bench: TrainBench) -> None:
    """With each variant's options scores, steps, weights sent and states are what they are without."""
    await made_again(bench, _CHECKS)


@rule("train.options.shown", law=8)
async def effect(bench: TrainBench) -> None:
    """Options with an effect that can be seen have it."""

    @asynccontextmanager
    async def started() -> AsyncIterator[Any]:
        with bench.engine() as engine:
            yield engine

    await shown(bench, started)


@rule("train.options.bounds", law=8)
def bounds(bench: TrainBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before an engine is loaded."""
    at_bounds(bench)


@rule("train.options.ranks", level=Level.DISTRIBUTED, requires=("parallel.data",), ranks=2)
def ranks(bench: TrainBench) -> None:
    """Two ranks with each variant's options step and score as one without, and go on exactly from their state."""
    for name, variant in bench.target.adapter.variants.items():
        for text in variant.layouts:
            layout = layout_of(text)
            given: dict[str, Any] = {"variant": name, "model": dict(variant.model), "spec": _SMALL}
            as_on_one_rank(bench, layout, plans=[EVEN, UNEVEN, FEW], **given)
            scored_as_on_one_rank(bench, layout, [FEW], ["logprobs", "entropy"], **given)
            if bench.target.claimed("checkpoint.exact"):
                same_after_load(bench, layout, variant=name, model=dict(variant.model))
