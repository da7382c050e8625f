"""Several ranks train as one: losses, gradients, metrics, shards, and errors that reach everyone.

Knows: what one rank says of the same batch is what several must say.
Does not know: how an engine splits its work.
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
    FEW,
    NOTHING_ON_FIRST,
    NOTHING_ON_LAST,
    UNEVEN,
    answered,
    close,
    layouts,
    looked_at,
    named,
    same_on_all,
    same_report,
    same_weights,
)

_TRAIN = "areal_conformance.ranks.steps:train"
_PLACEMENT = "areal_conformance.ranks.starts:placement"
_DATA = ("parallel.data",)
ADDED = 1e-6
"""How far a norm may be from that of the same gradients added in another order: float32 errs by 1e-7, half by 1e-4."""
_SMALL = {"max_tokens_per_microbatch": 15}
_SCHEDULE = {"schedule": "linear", "warmup_steps": 2, "total_steps": 5, "min_lr_ratio": 0.1}
_check = partial(check, level=Level.DISTRIBUTED, law=6, spec="train#train_step", requires=_DATA, ranks=2)


@_check("train.ranks.placement", spec="train#start")
def placement(bench: TrainBench) -> None:
    """EngineInfo tells each rank its shard: every shard has a rank, ranks of one shard only differ in other axes."""
    for layout, answers in looked_at(bench, _PLACEMENT):
        size = layout.get("d", 1)
        alone = {**answers[0]["alone_placed"], "data_size": size}
        for rank, answer in enumerate(answers):
            for name in ("data_size", "num_parameters", "context_length"):
                told = f"rank {rank} reports {name} {answer[name]}, it is {alone[name]}"
                expect(answer[name] == alone[name], f"layout {named(layout)}: {told}")
            for name in ("data_rank", "data_size", "num_parameters", "context_length"):
                expect(answer["again"][name] == answer[name], f"a second start gives rank {rank} another {name}")
        ranks = sorted(answer["data_rank"] for answer in answers)
        expected = sorted(list(range(size)) * (2 // size))
        expect(ranks == expected, f"layout {named(layout)}: data ranks are {ranks}, expected {expected}")


@_check("train.ranks.close_frees", law=10, spec="train#close")
def close_frees(bench: TrainBench) -> None:
    """After close, twice, no rank listens on a port or has a child it had not before, and can start again."""
    for layout, answers in looked_at(bench, _PLACEMENT):
        for rank, answer in enumerate(answers):
            expect(not answer["left"], f"layout {named(layout)}: after close rank {rank} still has {answer['left']}")
        same_on_all(layout, [answer["report"] for answer in answers], "the report after a second start")


@_check("train.ranks.report_alike")
def report_alike(bench: TrainBench) -> None:
    """A report is already reduced: every number of it is the same on every rank, to the bit."""
    spec = {"max_tokens_per_microbatch": 20}
    for layout, answers in answered(bench, _TRAIN, plans=[EVEN, UNEVEN, FEW], spec=spec):
        for step in range(3):
            same_on_all(layout, [answer["reports"][step] for answer in answers], f"the report of step {step}")


@_check("train.ranks.half", spec="train#precision", requires=("parallel.data", "precision.bfloat16"))
def half(bench: TrainBench) -> None:
    """In bfloat16 too gradients of data ranks add up in float32: their norm is that of one rank that adds the same."""
    given: dict[str, Any] = {  # Any: arguments of the program
        "plans": [EVEN],
        "shapes": [[2, 10]] * 8,
        "model": {"hidden": 16, "layers": 1},  # of few numbers: roundings of many even out
        "spec": {"dtype": "bfloat16", "max_tokens_per_microbatch": 12},
    }
    data = {"d": 2}
    (answer, *_) = bench.on_ranks(_TRAIN, 2, layout=data, **given)
    got, wanted = answer["reports"][0]["grad_norm"], answer["alone"][0]["grad_norm"]
    error = abs(got - wanted) / wanted
    bench.numbers["error"] = error
    told = f"the gradient norm of two ranks is {got!r}, of one with the same micro-batches {wanted!r}"
    expect(error <= ADDED, f"{told}: {error:.2g} apart, at most {ADDED:g}: ranks add up in half")


@family(
    "train.ranks.{name}",
    {
        "one_rank": Row(
            "Loss, gradient norm, metrics and weights of several steps are those of one rank on the whole batch.",
            {"plans": [EVEN, EVEN, EVEN]},
        ),
        "uneven": Row(
            "How sequences are dealt out does not matter: seven on one rank and one on the other train as on one rank.",
            {"plans": [UNEVEN, FEW, UNEVEN], "objective": "telling"},
        ),
        "empty_shard": Row(
            "A rank whose shard is empty takes part: the step is that of one rank, whichever rank has nothing.",
            {
                "plans": [NOTHING_ON_LAST, NOTHING_ON_FIRST, EVEN],
                "objective": "telling",
                "apart_s": APART_S,
                "meet": True,
            },
            deadline_s=40.0,
        ),
        "nothing_trained": Row(
            "A rank with tokens but none to train on adds nothing, and does not divide by its own count of zero.",
            {"plans": [EVEN, EVEN], "trained": [[0, 3], [1]]},
        ),
        "microbatches": Row(
            "Ranks cut different numbers of micro-batches, "
            "nobody waits for one that does not come, and nothing changes.",
            {"plans": [UNEVEN, FEW, NOTHING_ON_LAST], "spec": _SMALL, "apart_s": APART_S, "meet": True},
            deadline_s=25.0,
        ),
        "thresholds": Row(
            "Ranks whose share of the logits outgrows a chunk, or is no longer kept, train as one rank that keeps all.",
            {"plans": [EVEN, UNEVEN], "small": "logits", "model": {"tied": False, "vocab_size": 68}},
        ),
        "clipping": Row(
            "The gradient is clipped by its global norm, over all ranks and all parameters, as one rank clips it.",
            {"plans": [UNEVEN, EVEN], "optimizer": {"max_grad_norm": 0.02}},
        ),
        "extremes": Row(
            "A gradient whose squares are no float32 on any rank is clipped by its global norm, as one rank clips it.",
            {"plans": [UNEVEN, EVEN], "optimizer": {"max_grad_norm": 0.02}, "factor": 2.0**80},
        ),
        "schedule": Row(
            "The learning rate follows optimizer steps, not ranks or micro-batches.",
            {"plans": [EVEN, UNEVEN, FEW, EVEN], "optimizer": _SCHEDULE, "spec": _SMALL},
        ),
    },
    **_check.keywords,
)
def as_one(bench: TrainBench, arguments: dict[str, Any]) -> None:
    """Several ranks train as one."""
    for layout in layouts(bench):
        as_on_one_rank(bench, layout, **arguments)


@_check("train.ranks.untied")
def untied(bench: TrainBench) -> None:
    """A model with a head of its own, and a vocabulary no number of ranks divides, trains as on one rank."""
    for layout in layouts(bench):
        model = {"tied": False, "vocab_size": 67 if set(layout) == {"d"} else 68}
        as_on_one_rank(bench, layout, plans=[EVEN, UNEVEN], model=model)


@_check("train.ranks.value_head", requires=(*_DATA, "head.value"))
def value_head(bench: TrainBench) -> None:
    """A critic on several ranks learns and estimates as on one rank."""
    for layout in layouts(bench):
        as_on_one_rank(bench, layout, plans=[EVEN, UNEVEN], spec={"head": "value"}, objective="values")
        scored_as_on_one_rank(bench, layout, [FEW], ["values"], spec={"head": "value"})


@_check("train.ranks.late", law=9, spec="train#TrainEngine")
def late(bench: TrainBench) -> None:
    """A rank that is called later than the others, this one or that, is waited for, and nothing changes."""
    for number, layout in enumerate(layouts(bench)):
        as_on_one_rank(bench, layout, plans=[EVEN, UNEVEN], late=number % 2, sends=2)


@_check("train.ranks.unlike", level=Level.FAULTS, spec="train#training-engines-and-objectives")
def unlike(bench: TrainBench) -> None:
    """Ranks whose sets give the same names in another order each make the same collectives, and train as one rank."""
    for layout in layouts(bench):
        as_on_one_rank(bench, layout, plans=[EVEN, UNEVEN], unlike=True)


@_check("train.ranks.forward", spec="train#forward")
def forward(bench: TrainBench) -> None:
    """`forward` returns this rank's shard, in its order, with one rank's columns, before and after a step."""
    for layout in layouts(bench):
        plans = [NOTHING_ON_LAST, NOTHING_ON_FIRST, [[5, 0, 2], [1, 7, 6, 3, 4]]]
        scored_as_on_one_rank(bench, layout, plans, ["logprobs", "entropy"], spec={"max_tokens_per_microbatch": 30})


@_check("train.ranks.not_finite", spec="train#TrainReport", deadline_s=40.0)
def not_finite(bench: TrainBench) -> None:
    """A gradient that is not finite in one shard skips the step on all ranks: weights, moments and schedule stay.

    Of a critic, too, whose head is a single row, so that ranks which cut by rows hold nothing of it.
    """
    critic = "value" if bench.target.claimed("head.value") else "causal_lm"
    for bad, value, head in ((1, "nan", "causal_lm"), (0, "inf", critic)):
        program = "areal_conformance.ranks.steps:not_finite"
        for layout, answers in answered(bench, program, apart_s=APART_S, rows=EVEN, bad=bad, value=value, head=head):
            where = f"layout {named(layout)}, {value} in shard {bad}, head {head}"
            for key in ("skipped", "skipped_again"):
                for rank, answer in enumerate(answers):
                    report = answer[key]
                    expect(not report["stepped"], f"{where}: rank {rank} reports stepped=True")
                    norm = report["grad_norm"]
                    expect(isinstance(norm, str), f"{where}: rank {rank} reports grad_norm {norm}, it is not finite")
            same_on_all(layout, [answer["good"] for answer in answers], "the report after a skipped step")
            changed = answers[0]["changed"]
            expect(changed == 0.0, f"{where}: the skipped step moved weights by {changed:.3g}")
            for number, expected in enumerate(answers[0]["alone"]):
                same_report(bench, layout, expected, answers[0]["good"][number], f"step {number} around skipped ones")
            same_weights(bench, layout, {**answers[0], "moved": 0.0}, "steps around skipped ones")


@_check("train.ranks.frozen", spec="train#TrainSpec")
def frozen(bench: TrainBench) -> None:
    """A role without an optimizer scores as one rank does, and refuses to train on every rank."""
    program = "areal_conformance.ranks.steps:frozen_role"
    for layout, answers in answered(bench, program, apart_s=APART_S, rows=FEW):
        for rank, answer in enumerate(answers):
            kind, family, text = answer["error"]
            told = f"rank {rank} of a frozen role, asked to train: {kind or 'nothing raised'} {text}"
            expect(family == "areal", f"layout {named(layout)}: {told}; an error of areal was expected")
            expect(answer["before"] == answer["after"], f"layout {named(layout)}: rank {rank} scores differently now")
            for row, scores in zip(answer["rows"], answer["before"], strict=True):
                _same_scores(bench, layout, answers[0]["alone"][row], scores, f"rank {rank}, sequence {row}")


@_check("train.ranks.lora", spec="train#LoraSpec", requires=(*_DATA, "lora"), since=(1, 1))
def lora(bench: TrainBench) -> None:
    """All ranks hold the same adapter: they score the same sequences alike after each step, and only targets move."""
    for layout, answers in answered(bench, "areal_conformance.ranks.steps:adapters", rows=UNEVEN):
        for moment in range(3):
            pairs = zip(*(answer["scores"][moment] for answer in answers), strict=True)
            for row, (first, second) in enumerate(pairs):
                _same_scores(bench, layout, first, second, f"rank 1 against rank 0, {moment} steps, sequence {row}")
        for step in range(2):
            same_on_all(layout, [answer["reports"][step] for answer in answers], f"the report of step {step}")
        alone, told = answers[0]["alone"]["loss"], answers[0]["reports"][0]["loss"]
        what = "the loss of the first step, when no adapter has an effect yet"
        close(alone, told, bench.tolerance(atol=2e-5).atol, 0.0, f"layout {named(layout)}: {what}")
        moved, targets = answers[0]["moved"], answers[0]["targets"]
        expect(moved == targets, f"layout {named(layout)}: moved {moved}, the adapter's targets are {targets}")


@_check("train.ranks.loopback", law=11, spec="train#RankContext")
def loopback(bench: TrainBench) -> None:
    """Ranks that meet at a loopback address listen on no wildcard address: nobody outside can write to them."""
    for layout, answers in looked_at(bench, _PLACEMENT):
        for rank, answer in enumerate(answers):
            wild = [address for address in answer["listens"] if address in ("0.0.0.0", "::")]
            expect(not wild, f"layout {named(layout)}: rank {rank} listens on {wild}, that is on every interface")


def as_on_one_rank(
    bench: TrainBench,
    layout: dict[str, int],
    *,
    plans: list[Any],
    size: int = 2,
    apart_s: float = 15.0,
    **arguments: Any,
) -> None:
    """Expect steps on several ranks to be those of one rank. Any: arguments of the program."""
    answers = bench.on_ranks(_TRAIN, size, apart_s=apart_s, layout=layout, plans=plans, **arguments)
    for step, expected in enumerate(answers[0]["alone"]):
        for answer in answers:
            same_report(bench, layout, expected, answer["reports"][step], f"step {step} with shards {plans[step]}")
    expect(answers[0]["moved"] > 1e-4, f"training moved some tensor by {answers[0]['moved']:.3g} only")
    same_weights(bench, layout, answers[0], f"shards {plans}")


def scored_as_on_one_rank(
    bench: TrainBench, layout: dict[str, int], plans: list[Any], outputs: list[str], **arguments: Any
) -> None:
    """Expect scores on several ranks, plan by plan, to be those of one rank. Any: arguments of the program."""
    given: dict[str, Any] = {"layout": layout, "plans": plans, "outputs": outputs, **arguments}
    answers = bench.on_ranks("areal_conformance.ranks.steps:scores", 2, apart_s=APART_S, **given)
    for number, alone in enumerate(answers[0]["alone"]):
        for rank, answer in enumerate(answers):
            told, where = answer["scored"][number], f"rank {rank} with shards {plans[number]}"
            expect(not told["kept"], f"layout {named(layout)}, {where}: forward changed its shard: {told['kept']}")
            for moment in ("before", "after"):
                for name in outputs:
                    whole = dict(zip(alone["order"], alone[moment][name], strict=True))
                    for row, scores in zip(told["rows"], told[moment][name], strict=True):
                        what = f"{where}, {name} of sequence {row} {moment} a step"
                        _same_scores(bench, layout, whole[row], scores, what)


def _same_scores(
    bench: TrainBench, layout: dict[str, int], expected: list[float], actual: list[float], what: str
) -> None:
    bound = bench.tolerance(atol=2e-4, rtol=1e-4)
    where = f"layout {named(layout)}, {what}"
    expect(len(expected) == len(actual), f"{where}: {len(actual)} tokens came back of {len(expected)}")
    for place, (left, right) in enumerate(zip(expected, actual, strict=True)):
        close(left, right, bound.atol, bound.rtol, f"{where}, token {place}")
