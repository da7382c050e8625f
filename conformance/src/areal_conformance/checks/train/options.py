"""Options of a trainer change what they say, and no number: its checks again with each variant of the adapter.

Knows: which checks see most of a trainer in little time; on two ranks, that several with an option are one without.
Does not know: what an option means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.ranks_layouts import refused_or_right
from areal_conformance.checks.train.ranks_state import same_after_load
from areal_conformance.checks.train.ranks_steps import as_on_one_rank, scored_as_on_one_rank
from areal_conformance.oracles.combinations import pairwise
from areal_conformance.oracles.train_experts import KIND as MIXTURE
from areal_conformance.outcome import Violation, expect
from areal_conformance.ranks.layouts import EVEN, FEW, UNEVEN, layouts, of_experts, varied, with_experts
from areal_conformance.varied import at_bounds, differ, having, made_again, shown
from areal_core.contract.errors import ArealError
from areal_torch.testing.objectives import PolicyGradient

_CHECKS = (
    "train.forward.any_mask",
    "train.step.gradient_masks",
    "train.step.clipping",
    "train.send.current",
    "train.state.exact",
)
_AS_IT_IS = "as it is"
_FEW_TOKENS = 15
_SMALL = {"max_tokens_per_microbatch": _FEW_TOKENS}
_OF_FOUR = [[[0, 7], [1, 6], [5, 2], [4, 3]], [[4], [5, 1, 2], [], [0, 3, 6, 7]]]
rule = partial(check, level=Level.SINGLE, law=6, spec="train#start", deadline_s=240.0)


@rule("train.options.checks")
async def again(bench: TrainBench) -> None:
    """With each variant's options scores, steps, weights sent and states are what they are without."""
    await made_again(bench, _CHECKS)


@rule("train.options.shown", law=8)
async def effect(bench: TrainBench) -> None:
    """Options with an effect that can be seen have it."""

    @asynccontextmanager
    async def built() -> AsyncIterator[Any]:
        with bench.engine(max_tokens_per_microbatch=_FEW_TOKENS) as engine:
            yield engine

    await shown(bench, built)


@rule("train.options.bounds", law=8)
def bounds(bench: TrainBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before an engine is loaded."""
    at_bounds(bench)


@rule("train.options.started", law=8)
def started(bench: TrainBench) -> None:
    """With each value that an option may have an engine starts and makes a step, or refuses to start and says why."""
    for option, bounds in bench.target.adapter.bounds.items():
        for value in bounds.takes:
            with having(bench, {option: value}):
                _starts_or_refuses(bench, f"with {option}: {value!r}")


def _starts_or_refuses(bench: TrainBench, when: str) -> None:
    engine = bench.fresh()
    try:
        engine.start(bench.spec(), bench.rank_context())
    except ArealError as error:
        bench.notes.append(f"{when} it does not start here: {error.what}")
        return
    except Exception as error:
        raise Violation(f"{when}, which it may be, start raised {type(error).__name__}: {error}") from error
    report = engine.train_step(bench.batch(), PolicyGradient())
    expect(report.stepped, f"{when} an engine started, and made no step")
    engine.close()


@rule("train.options.ranks", level=Level.DISTRIBUTED, requires=("parallel.data",), ranks=2)
def ranks(bench: TrainBench) -> None:
    """Two ranks with each variant's options step and score as one without, and go on exactly from their state."""
    for name, variant, layout in varied(bench):
        given: dict[str, Any] = {"variant": name, "model": dict(variant.model), "spec": _SMALL}
        as_on_one_rank(bench, layout, plans=[EVEN, UNEVEN, FEW], **given)
        scored_as_on_one_rank(bench, layout, [FEW], ["logprobs", "entropy"], **given)
        if bench.target.claimed("checkpoint.exact"):
            same_after_load(bench, layout, variant=name, model=dict(variant.model))


@rule("train.options.shown_on_ranks", law=8, level=Level.DISTRIBUTED, requires=("parallel.data",), ranks=2)
def effect_on_ranks(bench: TrainBench) -> None:
    """Options that mean something on two ranks have the effect that can be seen there."""
    _shown_on(bench, 2, set())


def _shown_on(bench: TrainBench, size: int, seen: set[str]) -> None:
    """Expect of each variant but those seen what it shows on the first of its layouts of so many ranks."""
    for name, variant, layout in varied(bench, size):
        if variant.shows is None or name in seen:
            continue
        seen.add(name)
        given: dict[str, Any] = {"layout": layout, "variant": name, "spec": _SMALL}
        answers = bench.on_ranks("areal_conformance.ranks.effects:shown", size, **given)
        differ(name, variant, *([answer[which] for answer in answers] for which in ("without", "with")))


@rule("train.options.four", level=Level.FAULTS, requires=("parallel.data",), ranks=4)
def four(bench: TrainBench) -> None:
    """Four ranks with the options of each variant step as one rank without, and go on exactly from their state."""
    _shown_on(bench, 4, {name for name, *_ in varied(bench)})
    for name, variant, layout in varied(bench, 4):
        given: dict[str, Any] = {"variant": name, "model": dict(variant.model)}
        as_on_one_rank(bench, layout, plans=_OF_FOUR, size=4, spec=_SMALL, **given)
        if bench.target.claimed("checkpoint.exact"):
            same_after_load(bench, layout, size=4, rows=_OF_FOUR[0], **given)


@rule("train.options.together", level=Level.FAULTS, requires=("parallel.data",), ranks=2)
def together(bench: TrainBench) -> None:
    """Any option with any layout or variant is refused on every rank with an error of ours, or trains as one rank."""
    adapter = bench.target.adapter
    values: dict[str, list[Any]] = {}  # Any: as it stands in yaml
    for option, bounds in adapter.bounds.items():
        values[option] = list(bounds.takes)
    for variant in adapter.variants.values():
        for option, value in variant.options.items():
            values.setdefault(option, []).append(value)
    begun: list[tuple[dict[str, int], Mapping[str, Any], Mapping[str, Any]]]
    begun = [(layout, {}, {}) for layout in (*layouts(bench), *of_experts(bench))]
    begun += [(layout, one.options, one.model) for _, one, layout in varied(bench)]
    settings = {o: (_AS_IT_IS, *dict.fromkeys(v)) for o, v in values.items() if o not in adapter.without_effect}
    for row in pairwise({"begun": begun, **settings}):
        layout, options, model = row.pop("begun")
        options = {**{option: value for option, value in row.items() if value != _AS_IT_IS}, **options}
        plain = {"kind": MIXTURE} if with_experts(layout) else {"layers": 4}
        refused_or_right(bench, layout, {**plain, **model}, options)
