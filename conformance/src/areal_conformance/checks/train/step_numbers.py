"""Loss, gradient, AdamW, clipping and schedule of a step, against autograd and formulas in float64.

Knows: which settings make which mistake visible: one huge-eps AdamW step shows a gradient in the weights.
Does not know: how a batch is cut (`step_cutting`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.forward import shapes_drawn
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import number, same, weights_close
from areal_conformance.oracles.train_objectives import Filtering, Quadratic, Weighted
from areal_conformance.oracles.train_optimizer import DESCENT, SCALED, OracleTrainer
from areal_conformance.outcome import expect, raises
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ConfigError
from areal_core.contract.train import Objective, OptimizerSpec
from areal_torch.testing.batches import with_padding
from areal_torch.testing.objectives import PolicyGradient

_QUICKER: Any = (0.5, 0.9)  # Any: the converter of `betas` has no type
_USUAL: Any = (0.9, 0.999)
STEP = "train#areal_core.contract.train.TrainEngine.train_step"
OBJECTIVE = "train#areal_core.contract.train.Objective"
SPEC = "train#areal_core.contract.train.OptimizerSpec"


def one_step(bench: TrainBench, model: Path, batch: Batch, objective: Objective, **fields: Any) -> None:
    """Expect loss, norm and the gradient of every tensor of one step to be the oracle's. Any: fields of TrainSpec."""
    oracle = OracleTrainer(Oracle(model, temperature=fields.get("temperature", 1.0)), DESCENT)
    oracle.step(batch, objective)
    with bench.engine(model=model, optimizer=DESCENT, **fields) as engine:
        report = engine.train_step(batch, objective)
        got = bench.witnessed(engine)
    number(bench, "the loss reported", report.loss, oracle.loss, atol=1e-5, rtol=1e-4)
    number(bench, "the gradient norm reported", report.grad_norm, oracle.norm, atol=1e-6, rtol=2e-4)
    expect(report.stepped, f"the step was not made, although its gradient norm is {report.grad_norm:g}")
    what = "weights minus gradient (one step with eps = lr = 1000)"
    weights_close(bench, what, got, oracle.weights, atol=1e-6 + 2e-5 * oracle.norm)


@check("train.step.gradient", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def gradient(bench: TrainBench) -> None:
    """Loss, gradient norm and the gradient of every tensor are those of plain autograd, for every kind of model."""
    for kind in bench.target.adapter.models:
        for tied in (True, False):
            one_step(bench, bench.model(kind=kind, tied=tied), with_padding(bench.batch()), PolicyGradient())


@check("train.step.gradient_masks", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def gradient_masks(bench: TrainBench) -> None:
    """The gradient is right for any lengths and masks, in one micro-batch or many."""
    model = bench.model(hidden=32)
    for seed, tokens in ((1, 16384), (2, 12), (3, 25), (4, 12)):
        batch = bench.batch([*shapes_drawn(seed, 6), "01", "0"], seed=seed)
        one_step(bench, model, batch, PolicyGradient(), max_tokens_per_microbatch=tokens)


@check("train.step.gradient_temperature", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.TrainSpec")
def gradient_temperature(bench: TrainBench) -> None:
    """The loss is of log-probs at the temperature of the spec, and so is its gradient."""
    for temperature in (0.5, 1.4):
        one_step(bench, bench.model(hidden=32), bench.batch(seed=6), PolicyGradient(), temperature=temperature)


@check("train.step.entropy_gradient", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def entropy_gradient(bench: TrainBench) -> None:
    """An objective of entropy alone has its gradient: the column is part of the graph, also beside log-probs."""
    model = bench.model(hidden=32)
    one_step(bench, model, bench.batch(advantages=0.0), PolicyGradient(entropy=1.0))
    one_step(bench, model, bench.batch(), PolicyGradient(entropy=-0.7), temperature=0.8)


@check("train.step.normalizer", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def normalizer(bench: TrainBench) -> None:
    """The loss is divided once by the normaliser of the whole batch, whole number or not, large or small."""
    model = bench.model(hidden=32)
    uneven = bench.batch(["011111111", "0000000001", "00", "0111", "00000000", "01"])
    for share in (0.37, 1e-3, 250.0):
        for tokens in (16384, 10):
            one_step(bench, model, uneven, Weighted(share), max_tokens_per_microbatch=tokens)


@check("train.step.sequences", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def sequences(bench: TrainBench) -> None:
    """An objective over whole sequences and their table gets both, cut into micro-batches or not."""
    batch = bench.batch([*shapes_drawn(3, 5), (2, 6)])
    for tokens in (16384, 13):
        one_step(bench, bench.model(hidden=32), batch, Quadratic(), max_tokens_per_microbatch=tokens)


@check("train.step.constant_share", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def constant_share(bench: TrainBench) -> None:
    """A micro-batch whose share is a constant, for all in it was filtered out, adds nothing to the step of the rest."""
    batch = bench.batch([(2, 9), (1, 3), (4, 9), (1, 2)])
    batch = batch.with_sequences(reward=torch.tensor([0.0, 1.0, 0.0, 1.0]))
    for rows in ([0, 1, 2, 3], [2, 0, 1, 3]):
        one_step(bench, bench.model(hidden=32), batch.select(rows), Filtering(1.0), max_tokens_per_microbatch=14)


@check("train.step.off_mask", level=Level.SINGLE, law=6, spec=OBJECTIVE)
def off_mask(bench: TrainBench) -> None:
    """What stands off the mask trains nothing: advantages there, nan among them, change no bit of the step."""
    batch = bench.batch([*shapes_drawn(5, 4), (3, 4)])
    mask, advantages = batch.tokens["loss_mask"], batch.tokens["advantages"]
    results, losses = [], []
    for odd in (0.0, 1e6, torch.nan):
        with bench.engine(optimizer=SCALED) as engine:
            given = batch.with_tokens(advantages=torch.where(mask, advantages, torch.tensor(odd)))
            told = engine.train_step(given, PolicyGradient())
            expect(told.stepped, f"with {odd} as advantage off the mask the step was not made")
            losses.append(told.loss)
            results.append(bench.witnessed(engine))
    expect(losses == losses[:1] * 3, f"the loss depends on advantages off the mask: {losses}")
    same("weights with 1e6 as advantage off the mask", results[1], results[0])
    same("weights with nan as advantage off the mask", results[2], results[0])


@check("train.step.everywhere", level=Level.SINGLE, law=7, spec=STEP)
def everywhere(bench: TrainBench) -> None:
    """Every tensor of the model is trained: one step changes each of them, where the oracle's gradient is not 0."""
    for kind in bench.target.adapter.models:
        model = bench.model(kind=kind, tied=False)
        batch = bench.batch()
        wanted = Oracle(model).gradient(batch, PolicyGradient()).by_name
        with bench.engine(model=model, optimizer=OptimizerSpec(lr=1e-2, weight_decay=0.0)) as engine:
            before = bench.witnessed(engine)
            engine.train_step(batch, PolicyGradient())
            after = bench.witnessed(engine)
        for name, gradient in wanted.items():
            strong = gradient.abs() > 1e-5
            stuck = int((before[name] == after[name])[strong].sum())
            expect(not stuck, f"{kind}: {stuck} of {int(strong.sum())} numbers of {name} did not move in a step")


def follow(bench: TrainBench, spec: OptimizerSpec, num_steps: int, *, atol: float = 5e-5, sure: bool = False) -> None:
    """Expect weights, loss, norm and rate of `num_steps` different steps to be the oracle's.

    With `sure`, weights are compared only where no gradient was near the rounding noise.
    """
    model = bench.model(hidden=32)
    oracle = OracleTrainer(Oracle(model), spec)
    with bench.engine(model=model, optimizer=spec) as engine:
        for step in range(1, num_steps + 1):
            batch = bench.batch([(2, 3), (1, 5), (4, 9)], seed=step)
            oracle.step(batch, PolicyGradient())
            report = engine.train_step(batch, PolicyGradient())
            number(bench, f"learning rate of step {step}", report.lr, oracle.lr, rtol=1e-6, atol=1e-12)
            number(bench, f"gradient norm of step {step}", report.grad_norm, oracle.norm, atol=1e-5, rtol=1e-3)
            number(bench, f"loss of step {step}", report.loss, oracle.loss, atol=1e-4, rtol=1e-3)
            weights = bench.witnessed(engine)
            certain = oracle.certain if sure else None
            weights_close(bench, f"weights after step {step}", weights, oracle.weights, atol=atol, where=certain)


@check("train.step.adamw", level=Level.SINGLE, law=6, spec=SPEC)
def adamw(bench: TrainBench) -> None:
    """Steps are AdamW's: both moments, bias correction, eps outside the root, decoupled weight decay on all."""
    follow(bench, SCALED, 4)


@check("train.step.adamw_betas", level=Level.SINGLE, law=6, spec=SPEC)
def adamw_betas(bench: TrainBench) -> None:
    """Betas, eps and weight decay are those of the spec, not the usual ones."""
    follow(bench, attrs.evolve(SCALED, betas=_QUICKER, eps=3e-3, weight_decay=0.0), 3)
    follow(bench, attrs.evolve(SCALED, betas=_USUAL, eps=3e-2, weight_decay=2.0), 3)


@check("train.step.adamw_usual", level=Level.SINGLE, law=6, spec=SPEC)
def adamw_usual(bench: TrainBench) -> None:
    """With the usual tiny eps, every number whose gradient is above rounding noise moves as AdamW says."""
    follow(bench, OptimizerSpec(lr=1e-3, weight_decay=0.01, max_grad_norm=1.0), 3, atol=3e-5, sure=True)


@check("train.step.adamw_many", level=Level.SINGLE, law=6, spec=SPEC)
def adamw_many(bench: TrainBench) -> None:
    """Twenty steps stay on the oracle's path: nothing is lost or added on the way."""
    follow(bench, attrs.evolve(SCALED, lr=3e-3, eps=3e-2), 20, atol=2e-4)


@check("train.step.clipping", level=Level.SINGLE, law=6, spec=SPEC)
def clipping(bench: TrainBench) -> None:
    """The gradient is clipped to `max_grad_norm` by its global norm; the norm reported is that before clipping."""
    for limit in (0.3, 0.02):
        follow(bench, attrs.evolve(SCALED, max_grad_norm=limit, eps=1e-3), 3)


@check("train.step.not_clipped", level=Level.SINGLE, law=6, spec=SPEC)
def not_clipped(bench: TrainBench) -> None:
    """A norm below `max_grad_norm` is left alone, not scaled up, and 0 turns clipping off."""
    follow(bench, attrs.evolve(SCALED, max_grad_norm=1e3), 2)
    follow(bench, attrs.evolve(SCALED, max_grad_norm=0.0), 2)


@check("train.step.schedule", level=Level.SINGLE, law=6, spec=SPEC)
def schedule(bench: TrainBench) -> None:
    """Each step uses and reports the rate of its schedule: warm-up, fall, floor, and the floor for ever after."""
    for name in ("constant", "linear", "cosine"):
        for warmup, total, floor in ((2, 6, 0.1), (0, 4, 0.0), (3, 5, 0.5))[: 1 if name == "constant" else 3]:
            spec = attrs.evolve(
                SCALED, schedule=name, warmup_steps=warmup, total_steps=total, min_lr_ratio=floor, lr=4e-3, eps=3e-2
            )
            follow(bench, spec, total + 2 if warmup == 2 else total + 1, atol=1e-4)


@check("train.step.zero_rate", level=Level.SINGLE, law=6, spec=SPEC)
def zero_rate(bench: TrainBench) -> None:
    """With learning rate 0 a step is reported as made and changes no bit, weight decay or not."""
    with bench.engine(optimizer=OptimizerSpec(lr=0.0, weight_decay=0.1)) as engine:
        before = bench.witnessed(engine)
        for seed in range(3):
            report = engine.train_step(bench.batch(seed=seed), PolicyGradient())
            expect(report.stepped and report.lr == 0.0, f"a step with rate 0 was reported as {report}")
        same("weights after three steps with rate 0", bench.witnessed(engine), before)


@check("train.step.schedule_refused", level=Level.SINGLE, law=8, spec=SPEC)
def schedule_refused(bench: TrainBench) -> None:
    """A schedule that is unknown or ends before its warm-up is refused when the engine starts, not trained with."""
    bad = (
        OptimizerSpec(schedule="polynomial", total_steps=10),
        OptimizerSpec(schedule="linear", warmup_steps=4, total_steps=4),
        OptimizerSpec(schedule="cosine", total_steps=0),
    )
    for spec in bad:
        engine = bench.fresh()
        what = f"schedule {spec.schedule!r}, warm-up {spec.warmup_steps}, total {spec.total_steps}"
        raises(ConfigError, what, partial(engine.start, bench.spec(optimizer=spec), bench.rank_context()))
        engine.close()
