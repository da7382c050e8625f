"""What holds for a few sequences, steps or micro-batches must hold for many, and for large gradients as for small ones.

Knows: sizes at which a count, a buffer or a sum of low precision gives way.
Does not know: why; the numbers themselves are judged at small sizes by the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.train import Shape, TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.step_numbers import one_step
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import number, scored, weights_close
from areal_conformance.oracles.train_objectives import Quadratic
from areal_conformance.oracles.train_optimizer import DESCENT, OracleTrainer
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import OptimizerSpec
from areal_torch.testing.objectives import PolicyGradient

rule = partial(check, level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.OptimizerSpec")
_SLOW: Any = (0.97, 0.999)  # Any: the converter of `betas` has no type

_MANY: tuple[Shape, ...] = ((1, 4), (2, 3), (1, 2), (1, 1), "01011", (3, 5), (1, 4)) * 20
"""140 sequences: neighbours of one length everywhere, and more than 128 of them."""

_HUGE, _TINY = 2.0**100, 2.0**-84
"""Factors of a gradient: squares of the products are no float32, the products are, and nothing else is beside them."""
_LIMIT = 0.02
"""What such a gradient is clipped to."""

_LARGE, _NUM_SMALL = 600.0, 64
"""Advantage of the large micro-batch, and how many have 1 beside it: a part in 600 of any number is less than half
of bfloat16's last place, so a sum of that precision loses every small one added after the large."""
NORM, GRADIENT = 0.02, 0.04
"""How far they may be from that at once in bfloat16: the gradient norm, and the gradient of a tensor, as parts."""


@check("train.forward.many_sequences", level=Level.SINGLE, law=1, spec="train#areal_core.contract.train.Output")
def many_sequences(bench: TrainBench) -> None:
    """Among 140 sequences, many of one length, each has its own columns, in one micro-batch or in many."""
    model = bench.model(hidden=32)
    batch = bench.batch(_MANY, seed=8)
    oracle = Oracle(model)
    for tokens in (16384, 33):
        with bench.engine(model=model, max_tokens_per_microbatch=tokens) as engine:
            for count in (batch.num_sequences, 40):
                what = f"of {count} sequences in micro-batches of {tokens} tokens"
                scored(bench, what, engine, oracle, batch.select(list(range(count))), atol=5e-5)


@rule("train.step.many_sequences", spec="train#areal_core.contract.train.TrainEngine.train_step")
def step_of_many_sequences(bench: TrainBench) -> None:
    """Every one of 70 sequences trains with its own advantages, and of 36 with its own row of the table."""
    model = bench.model(hidden=32)
    batch = bench.batch(_MANY[:70], seed=9)  # more than 64
    one_step(bench, model, batch, PolicyGradient(), max_tokens_per_microbatch=50)
    one_step(bench, model, batch.select(list(range(34, 70))), Quadratic())


@rule("train.step.adamw_long")
def adamw_long(bench: TrainBench) -> None:
    """The bias correction counts every step: with slow betas, forty-eight steps each move the weights as AdamW says."""
    model = bench.model(hidden=32, layers=1)
    spec = OptimizerSpec(lr=2e-3, betas=_SLOW, eps=1e-2, weight_decay=0.0, max_grad_norm=0.0)
    oracle = OracleTrainer(Oracle(model), spec)
    batch = bench.batch([(1, 4)], seed=3)
    with bench.engine(model=model, optimizer=spec) as engine:
        for step in range(1, 49):
            oracle.step(batch, PolicyGradient())
            engine.train_step(batch, PolicyGradient())
            if step in (12, 20, 34, 48):
                what = f"weights after {step} steps with betas {spec.betas}"
                weights_close(bench, what, bench.witnessed(engine), oracle.weights, atol=1e-4)


@rule("train.step.large_norm")
def large_norm(bench: TrainBench) -> None:
    """A gradient of a norm far above 1 is used as it is where `max_grad_norm` is 0 or larger, else clipped to it."""
    model = bench.model(hidden=32)
    plain = bench.batch([(2, 3), (1, 4)], seed=4)
    for factor, limits in ((30.0, (0.0, 7.0)), (3000.0, (0.0, 1e6))):
        batch = plain.with_tokens(advantages=plain.tokens["advantages"] * factor)
        for limit in limits:
            # a step is the gradient over the factor
            spec = attrs.evolve(DESCENT, lr=1e3, eps=1e3 * factor, max_grad_norm=limit)
            oracle = OracleTrainer(Oracle(model), spec)
            with bench.engine(model=model, optimizer=spec) as engine:
                for step in (1, 2):
                    oracle.step(batch, PolicyGradient())
                    report = engine.train_step(batch, PolicyGradient())
                    expect(oracle.norm > 7.0, f"the oracle's gradient norm {oracle.norm:g} is too small to tell")
                    where = f"step {step} with max_grad_norm {limit:g} and a gradient norm of {oracle.norm:.4g}"
                    number(bench, f"gradient norm of {where}", report.grad_norm, oracle.norm, rtol=1e-3)
                    atol = 1e-6 + 1e-4 * min(oracle.norm, limit or oracle.norm) / factor
                    weights_close(bench, f"weights after {where}", bench.witnessed(engine), oracle.weights, atol=atol)


@rule("train.step.extremes", spec="train#a-step-s-report-and-what-is-refused")
def extremes(bench: TrainBench) -> None:
    """A gradient far from 1 has the norm it has, and is stepped and clipped by it, though its squares are no float32.

    Advantages times a power of two are a gradient times that, to the bit.
    """
    if bench.dtype == "float16":
        raise Inconclusive("in float16 a large gradient is not finite")
    whole = bench.batch([(2, 3), (1, 4), (4, 9)], seed=6)
    first = _scaled(whole, 0.0, rows=(1, 2))
    cases = (
        ("of every sequence", whole, _scaled(whole, _HUGE), _HUGE),
        ("of the first sequence", first, _scaled(whole, _HUGE, rows=(0,)), _HUGE),
        ("of every sequence", whole, _scaled(whole, _TINY), _TINY),
    )
    model = bench.model(hidden=32)
    spec = attrs.evolve(DESCENT, max_grad_norm=_LIMIT)
    for what, plain, scaled, factor in cases:
        ends, norms = [], []
        for batch in (plain, scaled):
            with bench.engine(model=model, optimizer=spec, max_tokens_per_microbatch=14) as engine:
                began = bench.witnessed(engine)
                told = engine.train_step(batch, PolicyGradient(entropy=0.0))
                norms.append(told.grad_norm)
                ends.append(bench.witnessed(engine))
            expect(told.stepped, f"a step was not made, its gradient norm is told as {told.grad_norm:g}")
        expect(norms[0] > _LIMIT, f"the gradient norm {norms[0]:g} is too small to be clipped to {_LIMIT:g}")
        told_as = f"gradient norm with the advantages {what} times {factor:.3g}, divided by it"
        number(bench, told_as, norms[1] / factor, norms[0], rtol=1e-3)
        wanted = ends[0] if factor > 1.0 else began
        weights_close(bench, f"weights after a step of that gradient norm, {norms[1]:.3g}", ends[1], wanted, atol=3e-6)
    with bench.engine(model=model, optimizer=spec) as engine:
        began = bench.witnessed(engine)
        told = engine.train_step(_scaled(whole, 0.0), PolicyGradient(entropy=0.0))
        expect(told.stepped and told.grad_norm == 0.0, f"a step whose gradient is zero is told as {told}")
        weights_close(bench, "weights after a step without a gradient", bench.witnessed(engine), began, atol=0.0)


def _scaled(batch: Batch, factor: float, rows: tuple[int, ...] = (0, 1, 2)) -> Batch:
    """Return the batch with the advantages of these sequences times a factor."""
    chosen = torch.isin(batch.sequence_ids, torch.tensor(rows))
    advantages = batch.tokens["advantages"]
    return batch.with_tokens(advantages=torch.where(chosen, advantages * factor, advantages))


@rule("train.bfloat16.accumulates", spec="train#areal_core.contract.train.TrainSpec", requires=("precision.bfloat16",))
def accumulates(bench: TrainBench) -> None:
    """In bfloat16 many small micro-batches beside a large one are not rounded away: gradients add up in float32."""
    shape: Shape = (1, 5)
    model = bench.model(hidden=32)
    one = bench.batch([shape], seed=5)
    length, count = one.num_tokens, _NUM_SMALL + 1
    mean = (_LARGE + _NUM_SMALL) / count
    many = one.select([0] * count)
    place = many.sequence_ids == count // 2  # in the middle, so that some small ones come later in any order
    scale = one.tokens["advantages"].new_ones(many.num_tokens)
    scale[place] = _LARGE
    many = many.with_tokens(advantages=many.tokens["advantages"] * scale)
    one = one.with_tokens(advantages=one.tokens["advantages"] * mean)
    norms: list[float] = []
    moves: list[Mapping[str, Tensor]] = []
    for batch in (one, many):
        with bench.engine(model=model, dtype="bfloat16", optimizer=DESCENT, max_tokens_per_microbatch=length) as engine:
            before = bench.witnessed(engine)
            report = engine.train_step(batch, PolicyGradient(entropy=0.0))
            after = bench.witnessed(engine)
        norms.append(report.grad_norm)
        moves.append({name: after[name].double() - before[name].double() for name in before})
    told, wanted = norms[1], norms[0]
    bench.numbers["norm_gap"] = abs(told / wanted - 1.0)
    lost = "what is small beside the sum so far is lost"
    what = f"one sequence {count} times, once with {_LARGE:g} times the advantage, in as many micro-batches"
    norms_are = f"gradient norm {told:.6g}, in one micro-batch {wanted:.6g}"
    expect(abs(told / wanted - 1.0) < NORM, f"{what}: {norms_are}; {lost}")
    for name, move in moves[0].items():
        size = float(move.norm())
        apart = float((moves[1][name] - move).norm())
        bench.numbers["gradient_gap"] = max(bench.numbers.get("gradient_gap", 0.0), apart / max(size, 1e-9))
        far = f"is {apart / max(size, 1e-9):.1%} from that of one"
        expect(apart < GRADIENT * size + 1e-5, f"the gradient of {name} over {count} micro-batches {far}; {lost}")
