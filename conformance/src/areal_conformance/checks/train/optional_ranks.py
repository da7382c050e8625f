"""Optional abilities on several ranks: an adapter, recorded routes, images and offload give what they give on one.

Knows: which layouts to ask for, and what several ranks must agree on.
Does not know: how the ranks are started; the programs are in `ranks.optional`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import (
    APART_S,
    EVEN,
    NOTHING_ON_LAST,
    UNEVEN,
    answered,
    close,
    layouts,
    named,
    no_gap,
    raised_on_all,
    same_on_all,
)

_PROGRAMS = "areal_conformance.ranks.optional"
_DATA = "parallel.data"
_ATOL = 5e-5
PLANS = [EVEN, UNEVEN, NOTHING_ON_LAST]
rule = partial(check, level=Level.DISTRIBUTED, since=(1, 1), ranks=2)


@family(
    "train.{ability}.ranks",
    {
        "lora": Row(
            "Several ranks train one adapter: "
            "the same A everywhere, the gradient of the whole batch, one merged model.",
            requires=("lora", _DATA),
        ),
        "adapter": Row(
            "An adapter sent alone is whole, whatever ranks share it, and the one that a single rank sends.",
            law=7,
            spec="train#lora",
            requires=("weights.adapter", _DATA),
            since=(1, 3),
        ),
        "experts": Row(
            "Recorded routes travel with the shards, also to ranks that share experts and may get no token: "
            "scores and steps of several ranks are those of one.",
            requires=("experts.replay", _DATA),
        ),
        "images": Row(
            "Images travel with the shards, and a rank that is shown none takes part: "
            "scores and steps are those of one.",
            requires=("images", _DATA),
            since=(1, 2),
            deadline_s=120.0,
        ),
        "candidates": Row(
            "Candidates travel with the shards, of a vocabulary that may be shared: scores and steps are those of one.",
            requires=("candidates", _DATA),
            since=(1, 4),
        ),
        "offload": Row(
            "Every rank moves its part away and back, between any two steps, and the steps are those of one rank.",
            law=4,
            requires=("memory.offload", _DATA),
        ),
    },
    law=6,
    spec="train#{ability}",
    **rule.keywords,
)
def as_one(bench: TrainBench, program: str) -> None:
    """The ranks agree to the bit, and with one rank within rounding, in norms, scores and weights."""
    norm, bound = bench.tolerance(atol=1e-5, rtol=5e-4), bench.tolerance(atol=_ATOL)
    axes = ("", "e") if program == "experts" and bench.target.claimed("parallel.expert") else ("",)
    found = (one for axis in axes for one in answered(bench, f"{_PROGRAMS}:{program}", letter=axis, plans=PLANS))
    for layout, answers in found:
        first, alone, where = answers[0], answers[0]["alone"], f"layout {named(layout)}"
        same_on_all(layout, [answer["norms"] for answer in answers], "the gradient norms")
        for step, (got, wanted) in enumerate(zip(first["norms"], alone["norms"], strict=True)):
            close(wanted, got, norm.atol, norm.rtol, f"{where}: the gradient norm of step {step}")
        close(0.0, first["gap"], bound.atol, 0.0, f"{where}: how far {first['worst']} is from what one rank sends")
        for answer in answers:
            for row, scores in answer["scores"].items():
                far = max(abs(a - b) for a, b in zip(scores, alone["scores"][row], strict=True))
                close(0.0, far, 5 * bound.atol, 0.0, f"{where}: how far log-probs of sequence {row} are")


@rule("train.experts.refused_on_all", law=9, spec="train#experts", requires=("experts.replay", _DATA))
def refused_on_all(bench: TrainBench) -> None:
    """Unfit routes in one shard are refused on every rank, and the next step is made."""
    for bad in (0, 1):
        program = f"{_PROGRAMS}:unfit_routes"
        for layout, answers in answered(bench, program, letter="d", apart_s=APART_S, plan=EVEN, bad=bad):
            for call in ("forward", "train_step"):
                errors = [{"error": answer["errors"][call]} for answer in answers]
                raised_on_all(layout, errors, ["BatchError"], f"{call} with unfit routes on rank {bad}")
            stepped = [answer["stepped"] for answer in answers]
            expect(all(stepped), f"layout {named(layout)}: the step after was made by {stepped}")


@rule("train.offload.ranks_full", level=Level.FAULTS, law=9, spec="train#offload", requires=("memory.offload", _DATA))
def offload_full(bench: TrainBench) -> None:
    """A rank that has no room to move to is an error on every rank, and all keep the memory they have."""
    for victim, layout in enumerate(layouts(bench)):
        told: dict[str, Any] = {"layout": layout, "rows": EVEN, "victim": victim % 2}
        answers = bench.on_ranks(f"{_PROGRAMS}:offload_full", 2, apart_s=APART_S, **told)
        where = f"layout {named(layout)}, offload without room on rank {victim % 2}"
        if not any(answer["error"][0] for answer in answers):
            bench.notes.append("what is moved away goes where no disk can be full")
        else:
            for rank, answer in enumerate(answers):
                expect(answer["error"][1] == "areal", f"{where}: rank {rank} raised {answer['error'] or 'nothing'}")
        no_gap(answers[0]["gap"], where)
        expect(all(answer["stepped"] for answer in answers), f"{where}: the step after it was not made")
