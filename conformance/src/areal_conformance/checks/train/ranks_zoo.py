"""Drawn models on two ranks, in every layout; and moments that ranks share.

Knows: which models are drawn for which layout.
Does not know: families, or how an engine cuts them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, expect
from areal_conformance.probes.precision import MOMENTS
from areal_conformance.ranks.layouts import EVEN, close, layouts, named, of_experts, with_experts
from areal_conformance.target import Target
from areal_conformance.zoo.architectures import ARCHITECTURES
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import claimed
from areal_conformance.zoo.traits import HEADS, Drawn

_PROGRAMS = "areal_conformance.ranks.zoo"
A_LAYOUT = 3
"""Models drawn for each layout, of as many families."""
STEPS = 8
rule = partial(check, level=Level.DISTRIBUTED, law=6, ranks=2, requires=("parallel.data",))


@rule("train.ranks.zoo", spec="train#models", deadline_s=180.0)
def zoo(bench: TrainBench) -> None:
    """Models drawn from what config.json can say are scored and stepped by two ranks as by transformers in float64.

    Of every other type that is taken one is cut over tensor ranks, or refused on each of them.
    """
    found = [*layouts(bench), *of_experts(bench)]
    for number, layout in enumerate(found):
        for model in models(bench.target, layout, number):
            _right(bench, layout, model)
        if layout.get("t", 1) > 1:
            for model in others(bench.target):
                _right(bench, layout, model, may_refuse=True)


def _right(bench: TrainBench, layout: dict[str, int], model: Drawn, *, may_refuse: bool = False) -> None:
    told, bound = f"layout {named(layout)}, {model}", bench.tolerance(atol=2e-4)
    given: dict[str, Any] = {"layout": layout, "folder": str(folder_of(model))}  # Any: arguments of the program
    if may_refuse:
        refusals = bench.on_ranks(f"{_PROGRAMS}:refused", 2, **given)
        if any(refusals):
            expect(all(refusals), f"{told}: refused on some ranks only: {refusals}")
            bench.notes.append(f"layout {named(layout)}: {model.architecture} is refused")
            return
    answers = bench.on_ranks(f"{_PROGRAMS}:drawn", 2, rows=EVEN, seed=model.seed, **given)
    for rank, answer in enumerate(answers):
        for name in ("logprobs", "entropy"):
            far = f"{told}: {name} of rank {rank} are {answer[name]:.2g} from the truth"
            expect(answer[name] <= bound.atol, f"{far}, at most {bound.atol:g}")
    whole, report = answers[0], answers[0]["report"]
    close(whole["loss"], report["loss"], 1e-4, 1e-4, f"{told}: loss")
    close(whole["norm"], report["grad_norm"], 1e-5, 1e-3, f"{told}: gradient norm")
    far = f"{told}: {whole['worst']!r} minus its gradient is {whole['gap']:.2g} from the truth"
    expect(whole["gap"] <= 1e-5 + 1e-4 * whole["norm"], far)


@rule("train.ranks.moments", spec="train#precision", deadline_s=120.0)
def moments(bench: TrainBench) -> None:
    """Ranks keep weights and moments in float32, whole or shared: steps without a gradient follow the formula."""
    if bench.dtype != "float32":
        raise Inconclusive(f"weights are sent in {bench.dtype}: too coarse to tell")
    for layout in layouts(bench):
        answers = bench.on_ranks(f"{_PROGRAMS}:coasts", 2, layout=layout, rows=EVEN, num_steps=STEPS)
        told = f"layout {named(layout)}: {STEPS} steps by moments alone err by {answers[0]:.2g} of the way"
        expect(answers[0] <= MOMENTS, f"{told}, at most {MOMENTS:g}")


def models(target: Target, layout: dict[str, int], number: int) -> list[Drawn]:
    """Return models of some families for a layout, others than for the layouts before it; heads must divide."""
    kinds = [kind for kind in target.adapter.models if kind in ARCHITECTURES]
    wanted = [kind for kind in kinds if kind.endswith("moe")] if with_experts(layout) else kinds
    chosen = [wanted[(number + turn) % len(wanted)] for turn in range(min(A_LAYOUT, len(wanted)))]
    found = []
    for kind in chosen:
        fitting = _divided(target, kind)
        found.append(fitting[number % len(fitting)])
    return found


def others(target: Target) -> list[Drawn]:
    """Return a model of each type that is taken beside those the adapter brings models of: the last one drawn."""
    return [model for kind in target.adapter.architectures for model in _divided(target, kind)[-1:]]


def _divided(target: Target, kind: str) -> list[Drawn]:
    """Return models of a type whose key heads two ranks can share."""
    return [model for model in claimed(target, kind) if HEADS[model["heads"]][1] > 1]
