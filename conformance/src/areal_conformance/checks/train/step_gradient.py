"""Loss, gradient and its norm, against autograd through transformers in float64.

Knows: how one huge-eps AdamW step makes a gradient visible in the weights.
Does not know: AdamW itself (`step_optimizer`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.forward_numbers import shapes_drawn
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import number, same, weights_close
from areal_conformance.oracles.train_objectives import Quadratic, Weighted
from areal_conformance.oracles.train_optimizer import OracleTrainer
from areal_conformance.oracles.train_specs import DESCENT, SCALED
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import Objective, OptimizerSpec
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#areal_core.contract.train.TrainEngine.train_step"
OBJECTIVE = "train#areal_core.contract.train.Objective"


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
            one_step(bench, bench.model(kind=kind, tied=tied), bench.batch(), PolicyGradient())


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


@check("train.step.everywhere", level=Level.SINGLE, law=7, spec=SPEC)
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
