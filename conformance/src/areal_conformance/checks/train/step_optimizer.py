"""AdamW, clipping and schedule, step by step, against their formulas in float64.

Knows: which settings make which mistake visible.
Does not know: gradients (`step_gradient` has judged them).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import number, raises, same, weights_close
from areal_conformance.oracles.train_optimizer import OracleTrainer
from areal_conformance.oracles.train_specs import SCALED
from areal_conformance.outcome import expect
from areal_core.contract.errors import ConfigError
from areal_core.contract.train import OptimizerSpec
from areal_torch.testing.objectives import PolicyGradient

_QUICKER: Any = (0.5, 0.9)  # Any: the converter of `betas` has no type
_USUAL: Any = (0.9, 0.999)
SPEC = "train#areal_core.contract.train.OptimizerSpec"


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
