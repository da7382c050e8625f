"""Layouts: every claimed axis computes what one rank computes, every other one is refused on all ranks.

Knows: the axes of backend strings.
Does not know: meshes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.outcome import Exempt, NotRefused, expect
from areal_conformance.ranks.layouts import (
    APART_S,
    CLAIMS,
    EVEN,
    UNEVEN,
    layouts,
    named,
    raised_on_all,
    same_on_all,
    same_report,
    same_weights,
    varied,
    with_experts,
)

_PAIRS = [[2, 3], [2, 3], [4, 4], [4, 4], [1, 6], [1, 6], [3, 2], [3, 2]]
"""Pairs of equal lengths: ranks that take one another's shard compute something wrong, and do not hang."""
_MIXTURE = "qwen3_moe"
"""The kind of tiny model that has experts."""
_REFUSED = "areal_conformance.ranks.starts:refused_layout"
REFUSED: dict[str, dict[str, int]] = {
    "tensor": {"d": 1, "t": 2},
    "context": {"d": 1, "c": 2},
    "pipeline": {"d": 1, "p": 2},
    "expert": {"d": 2, "e": 2},
    "data": {"d": 2},
}
"""Axis -> a layout of two ranks along it; its letter comes last."""
_THREE_HEADS = {"hidden": 48, "heads": 3, "kv_heads": 3}
UNFIT: dict[str, tuple[dict[str, int], ...]] = {
    "t": (_THREE_HEADS, {"kv_heads": 1}),
    "c": (_THREE_HEADS,),
    "p": ({"layers": 3}, {"layers": 1}),
    "e": ({},),
}
"""Letter -> tiny models that two ranks along it cannot share evenly; one without experts has none to share."""
_right = partial(family, level=Level.DISTRIBUTED, law=6, ranks=2)
_refuses = partial(check, level=Level.DISTRIBUTED, law=8, spec="train#start", ranks=2, deadline_s=40.0)


@_right(
    "train.ranks.{axis}",
    {
        "tensor": Row("each matrix take the whole batch, and", "t"),
        "context": Row("each sequence take the whole batch, and", "c"),
        "pipeline": Row("the layers take the whole batch, and", "p"),
        "expert": Row("the experts, and send each token to its own,", "e"),
    },
    spec="train#TrainSpec",
    requires=("parallel.{axis}",),
)
def axis(bench: TrainBench, letter: str) -> None:
    """Ranks that share {...} compute what one rank computes."""
    for layout in layouts(bench, letter=letter):
        _as_one_rank(bench, layout, 2, plans=[EVEN, UNEVEN, EVEN])


@_right(
    "train.ranks.{four}",
    {
        "four": Row(
            "On four ranks too every shard goes where its data rank is, and the step is that of one rank.",
            "",
            requires=("parallel.data",),
        ),
        "four_experts": Row(
            "Experts shared by some of four ranks, or by all, are trained as on one.",
            "e",
            requires=("parallel.expert",),
        ),
    },
    spec="train#EngineInfo",
    ranks=4,
)
def four(bench: TrainBench, letter: str) -> None:
    """Four ranks compute what one computes."""
    plans = [[[0], [1], [2], [3]], [[4], [5], [], []], [[0, 7], [1, 6], [5, 2], [4, 3]]]
    for layout in layouts(bench, letter=letter, world_size=4):
        _as_one_rank(bench, layout, 4, plans=plans, shapes=_PAIRS)


@check("train.ranks.four_uneven", level=Level.FAULTS, law=6, spec="train#TrainSpec", ranks=4, deadline_s=120.0)
def four_uneven(bench: TrainBench) -> None:
    """Four ranks refuse key heads or words that they cannot share evenly, or compute what one rank computes."""
    axes = [letter for letter in ("t", "c") if bench.target.claimed(CLAIMS[letter])]
    if not axes:
        raise Exempt("no axis along which ranks share heads or words is claimed")
    for letter in axes:
        refused_or_right(bench, {"d": 1, letter: 4}, {"hidden": 64, "heads": 8, "kv_heads": 2}, {}, num_ranks=4)
    if "t" in axes and bench.target.claimed(CLAIMS["d"]):
        refused_or_right(bench, {"d": 2, "t": 2}, {"hidden": 32, "vocab_size": 67}, {}, num_ranks=4)


@family("train.ranks.refuse.{axis}", REFUSED, unless=("parallel.{axis}",), **_refuses.keywords)
def refused(bench: TrainBench, layout: dict[str, int]) -> None:
    """Without {axis} parallelism, a layout that has it is refused on every rank."""
    answers = bench.on_ranks(_REFUSED, 2, apart_s=APART_S, layout=layout, model=_model(layout))
    claim = CLAIMS[next(letter for letter in reversed(layout))]
    if not any(answer["error"][0] for answer in answers):
        raise NotRefused(claim)
    what = f"{claim}, which is not claimed,"
    raised_on_all(layout, answers, ["LayoutError", "CapabilityError"], what)


@_refuses("train.ranks.layout_error")
def layout_error(bench: TrainBench) -> None:
    """A layout of another number of ranks than were started is a LayoutError on every rank; nobody waits."""
    for layout in ({"d": 3}, {"d": 1}, {"d": 4}, {"d": 2, "t": 2}, {"d": 1, "t": 1, "p": 1, "c": 1}):
        answers = bench.on_ranks(_REFUSED, 2, apart_s=APART_S, layout=layout)
        raised_on_all(layout, answers, ["LayoutError"], "2 ranks")


@_refuses("train.ranks.unfit", requires=("parallel.data",))
def unfit(bench: TrainBench) -> None:
    """A model that ranks cannot share evenly is refused on every rank, or trained as on one: nothing is left out."""
    for letter, models in UNFIT.items():
        if bench.target.claimed(CLAIMS[letter]):
            for model in models:
                refused_or_right(bench, layouts(bench, letter=letter)[0], model, {})
    for _, variant, layout in varied(bench):
        for letter, models in UNFIT.items():
            if layout.get(letter, 1) > 1 or (letter == "e" and variant.model.get("kind") == _MIXTURE):
                refused_or_right(bench, layout, models[0], variant.options)


def refused_or_right(
    bench: TrainBench, layout: dict[str, int], model: Mapping[str, Any], options: Mapping[str, Any], num_ranks: int = 2
) -> None:
    """Expect ranks to refuse to start, all of them, or to step as one rank without these options. Any: json."""
    given: dict[str, Any] = {"rows": EVEN, "model": dict(model), "options": dict(options)}
    answers = bench.on_ranks("areal_conformance.ranks.taken:step", num_ranks, apart_s=APART_S, layout=layout, **given)
    what = f"a model of {dict(model)} with the options {dict(options)}"
    if any(answer["error"][0] for answer in answers):
        for rank, (kind, family_of, text) in enumerate(answer["error"] for answer in answers):
            said = f"rank {rank} raised {kind}: {text.splitlines()[:1]}" if kind else f"rank {rank} started"
            expect(family_of == "areal", f"layout {named(layout)}: {what} is refused on some rank, and {said}")
        return
    same_on_all(layout, [answer["report"] for answer in answers], f"the report of {what}")
    same_report(bench, layout, answers[0]["alone"], answers[0]["report"], what)
    same_weights(bench, layout, answers[0], what)


def _as_one_rank(bench: TrainBench, layout: dict[str, int], world_size: int, **steps: Any) -> None:
    """Expect ranks to be placed, to step and to end as one rank does. Any: arguments of the program."""
    model = _model(layout)
    _placed(bench, layout, world_size, model)
    answers = bench.on_ranks(
        "areal_conformance.ranks.steps:train", world_size, apart_s=APART_S, layout=layout, model=model, **steps
    )
    for step, expected in enumerate(answers[0]["alone"]):
        same_on_all(layout, [answer["reports"][step] for answer in answers], f"the report of step {step}")
        same_report(bench, layout, expected, answers[0]["reports"][step], f"step {step}")
    same_weights(bench, layout, answers[0], "three steps")


def _model(layout: Mapping[str, int]) -> dict[str, str]:
    return {"kind": _MIXTURE} if with_experts(layout) else {}


def _placed(bench: TrainBench, layout: dict[str, int], world_size: int, model: Mapping[str, str]) -> None:
    """Expect each shard to have as many ranks as the others; only `d` makes shards."""
    answers = bench.on_ranks(
        "areal_conformance.ranks.starts:placement", world_size, apart_s=APART_S, layout=layout, model=model
    )
    size = layout.get("d", 1)
    told = sorted(f"{answer['data_rank']} of {answer['data_size']}" for answer in answers)
    right = sorted(f"{number} of {size}" for number in range(size) for _ in range(world_size // size))
    expect(told == right, f"layout {named(layout)}: ranks take the shards {told}, expected {right}")
