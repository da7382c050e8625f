"""Optional abilities on several ranks: an adapter, recorded routes, images and offload give what they give on one.

Knows: which layouts to ask for, and what several ranks must agree on.
Does not know: how the ranks are started; the programs are in `ranks.optional`.
"""

from __future__ import annotations

from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import EVEN, NOTHING_ON_LAST, UNEVEN, layouts, named

_PROGRAMS = "areal_conformance.ranks.optional"
_DATA = "parallel.data"
_ATOL = 5e-5
PLANS = [EVEN, UNEVEN, NOTHING_ON_LAST]


def _as_one(bench: TrainBench, program: str, layout: dict[str, int], **arguments: Any) -> None:  # Any: plain json
    """Expect the ranks to agree to the bit, and with one rank within rounding, in norms, scores and weights."""
    answers = bench.on_ranks(f"{_PROGRAMS}:{program}", 2, layout=layout, plans=PLANS, **arguments)
    alone = answers[0]["alone"]
    where = f"layout {named(layout)}"
    norm = bench.tolerance(atol=1e-5, rtol=5e-4)
    gap = bench.tolerance(atol=_ATOL)
    for rank, answer in enumerate(answers):
        expect(
            answer["norms"] == answers[0]["norms"],
            f"{where}: gradient norms are {answer['norms']} on rank {rank}, {answers[0]['norms']} on rank 0",
        )
    for step, (got, wanted) in enumerate(zip(answers[0]["norms"], alone["norms"], strict=True)):
        expect(
            abs(got - wanted) <= norm.atol + norm.rtol * wanted,
            f"{where}: the gradient norm of step {step} is {got:.9g}, on one rank it is {wanted:.9g}",
        )
    worst = answers[0]["worst"]
    expect(
        answers[0]["gap"] <= gap.atol,
        f"{where}: after {len(PLANS)} steps {worst} is {answers[0]['gap']:.3g} from what one rank sends",
    )
    for answer in answers:
        for row, scores in answer["scores"].items():
            wanted_scores = alone["scores"][row]
            far = max(abs(a - b) for a, b in zip(scores, wanted_scores, strict=True))
            expect(far <= 5 * gap.atol, f"{where}: log-probs of sequence {row} are {far:.3g} from those of one rank")


@check(
    "train.lora.ranks",
    level=Level.DISTRIBUTED,
    law=6,
    spec="train#lora",
    requires=("lora", _DATA),
    since=(1, 1),
    ranks=2,
)
def lora(bench: TrainBench) -> None:
    """Several ranks train one adapter: the same A everywhere, the gradient of the whole batch, one merged model."""
    for layout in layouts(bench):
        _as_one(bench, "lora", layout)


@check(
    "train.experts.ranks",
    level=Level.DISTRIBUTED,
    law=6,
    spec="train#experts",
    requires=("experts.replay", _DATA),
    since=(1, 1),
    ranks=2,
)
def experts(bench: TrainBench) -> None:
    """Recorded routes travel with the shards: scores and steps of several ranks are those of one."""
    for layout in layouts(bench):
        _as_one(bench, "experts", layout)


@check(
    "train.experts.refused_on_all",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#experts",
    requires=("experts.replay", _DATA),
    since=(1, 1),
    ranks=2,
)
def refused_on_all(bench: TrainBench) -> None:
    """Unfit routes in one shard are refused on every rank, and the next step is made."""
    for layout in layouts(bench, letter="d"):
        for bad in (0, 1):
            answers = bench.on_ranks(f"{_PROGRAMS}:unfit_routes", 2, apart_s=4.0, layout=layout, plan=EVEN, bad=bad)
            for rank, answer in enumerate(answers):
                for call, error in answer["errors"].items():
                    expect(
                        error == "BatchError",
                        f"layout {named(layout)}: unfit routes on rank {bad} must be a BatchError of {call} on every "
                        f"rank; rank {rank} raised {error or 'nothing'}",
                    )
                expect(answer["stepped"], f"layout {named(layout)}: rank {rank} did not make the step after")


@check(
    "train.images.ranks",
    level=Level.DISTRIBUTED,
    law=6,
    spec="train#images",
    requires=("images", _DATA),
    since=(1, 2),
    ranks=2,
)
def images(bench: TrainBench) -> None:
    """Images travel with the shards, and a rank that is shown none takes part: scores and steps are those of one."""
    for layout in layouts(bench):
        _as_one(bench, "images", layout)


@check(
    "train.offload.ranks",
    level=Level.DISTRIBUTED,
    law=4,
    spec="train#offload",
    requires=("memory.offload", _DATA),
    since=(1, 1),
    ranks=2,
)
def offload(bench: TrainBench) -> None:
    """Every rank moves its part away and back, between any two steps, and the steps are those of one rank."""
    for layout in layouts(bench):
        _as_one(bench, "offload", layout)
