"""What a step may change and what not, and what it refuses.

Knows: steps that cannot be made: too long, incomplete, not finite, raising.
Does not know: numbers of good steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train_compare import same
from areal_conformance.oracles.train_objectives import Cliff, Drawing, Failing, Watcher
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, BatchError
from areal_core.contract.train import OptimizerSpec, Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#areal_core.contract.train.TrainEngine.train_step"
REPORT = "train#areal_core.contract.train.TrainReport"


def unharmed(bench: TrainBench, what: str, bad: Callable[[TrainEngine], Any], **fields: Any) -> None:
    """Expect weights not to change by `bad`, and the next step to give the bits of a run in which it never was.

    Any: fields of TrainSpec; what `bad` returns is not looked at.
    """
    schedule = OptimizerSpec(lr=1e-2, weight_decay=0.1, schedule="linear", warmup_steps=2, total_steps=5)
    ends, rates = [], []
    for harmed in (False, True):
        with bench.engine(optimizer=schedule, **fields) as engine:
            engine.train_step(bench.batch(seed=1), PolicyGradient())
            if harmed:
                before = bench.witnessed(engine)
                bad(engine)
                same(f"weights after {what}", bench.witnessed(engine), before)
            reports = [engine.train_step(bench.batch(seed=seed), PolicyGradient()) for seed in (2, 3)]
            ends.append(bench.witnessed(engine))
            rates.append([told.lr for told in reports])
    expect(rates[0] == rates[1], f"rates after {what} are {rates[1]}, without it {rates[0]}")
    same(f"weights two steps after {what}, with and without it", ends[1], ends[0])


@check("train.step.not_finite", level=Level.SINGLE, law=6, spec=REPORT)
def not_finite(bench: TrainBench) -> None:
    """A gradient that is not finite is not stepped: weights, optimizer and schedule stay, and the norm seen is told."""
    batch = bench.batch(["0111", "01111", (2, 6)])
    for place, value in ((1, torch.nan), (-1, torch.inf), (6, -torch.inf)):
        advantages = batch.tokens["advantages"].clone()
        advantages[place] = value
        poisoned = batch.with_tokens(advantages=advantages)

        def bad(engine: TrainEngine, poisoned: Batch = poisoned, value: float = value) -> None:
            told = engine.train_step(poisoned, PolicyGradient())
            expect(not told.stepped, f"a step with an advantage of {value} was made")
            expect(not math.isfinite(told.grad_norm), f"its gradient norm is told as {told.grad_norm}, not as it was")

        for tokens in (16384, 8 + 5):
            unharmed(bench, f"a step with an advantage of {value}", bad, max_tokens_per_microbatch=tokens)


@check("train.step.not_finite_slope", level=Level.SINGLE, law=6, spec=REPORT)
def not_finite_slope(bench: TrainBench) -> None:
    """A finite loss with a gradient that is not finite is not stepped: the gradient decides, not the loss."""

    def bad(engine: TrainEngine) -> None:
        told = engine.train_step(bench.batch(seed=4), Cliff())
        expect(math.isfinite(told.loss), f"the loss is told as {told.loss}, it is finite")
        expect(not told.stepped, "a step was made whose loss is finite and whose gradient is not")
        expect(not math.isfinite(told.grad_norm), f"its gradient norm is told as {told.grad_norm}, not as it was")

    for tokens in (16384, 8 + 5):
        unharmed(bench, "a step with an infinite slope", bad, max_tokens_per_microbatch=tokens)


@check("train.step.not_finite_twice", level=Level.SINGLE, law=6, spec=REPORT)
def not_finite_twice(bench: TrainBench) -> None:
    """Several steps that are not finite, one after another, are each skipped, and told as the good ones never are."""

    def bad(engine: TrainEngine) -> None:
        for seed in range(3):
            told = engine.train_step(bench.batch(seed=seed, advantages=torch.inf), PolicyGradient())
            expect(not told.stepped, f"step {seed} with infinite advantages was made")

    unharmed(bench, "three steps with infinite advantages", bad)


@check("train.step.overflow", level=Level.SINGLE, law=6, spec=REPORT)
def overflow(bench: TrainBench) -> None:
    """Huge finite advantages are stepped where their norm is finite, and skipped, never trained on, where it is not."""
    for scale in (1e4, 1e15, 1e37):
        with bench.engine(optimizer=OptimizerSpec(lr=1e-3)) as engine:
            told = engine.train_step(bench.batch(advantages=scale), PolicyGradient())
            weights = bench.witnessed(engine)
        right = told.stepped is math.isfinite(told.grad_norm)
        expect(right, f"stepped is {told.stepped} with a gradient norm of {told.grad_norm:g}")
        expect(told.stepped or scale > 1e4, f"advantages of {scale:g} were not stepped: norm {told.grad_norm:g}")
        broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
        expect(not broken, f"after advantages of {scale:g} these weights are not finite: {', '.join(broken[:3])}")


@check("train.step.too_long", level=Level.SINGLE, law=8, spec=SPEC)
def too_long(bench: TrainBench) -> None:
    """A sequence over the budget or the model's context is a BatchError before anything changes, never cut short."""

    def bad(engine: TrainEngine) -> None:
        batch = bench.batch([(2, 3), (1, 13), (1, 2)])
        raises(BatchError, "14 tokens, a budget of 13", lambda: engine.train_step(batch, PolicyGradient()))
        raises(BatchError, "the same in forward", lambda: engine.forward(batch, frozenset({Output.LOGPROBS})))
        fits = bench.batch([(1, 12), (2, 3)])
        told = engine.forward(fits, frozenset({Output.LOGPROBS}))
        expect(told.num_tokens == fits.num_tokens, "a sequence of exactly the budget was not scored")

    unharmed(bench, "a sequence over the budget", bad, max_tokens_per_microbatch=13)

    def beyond(engine: TrainEngine) -> None:
        batch = bench.batch([(2, 3), (1, 32)])
        raises(BatchError, "33 tokens, a context of 32", lambda: engine.train_step(batch, PolicyGradient()))
        raises(BatchError, "the same in forward", lambda: engine.forward(batch, frozenset({Output.LOGPROBS})))

    unharmed(bench, "a sequence over the context", beyond, model=bench.model(hidden=32, max_position=32))


@check("train.step.missing_column", level=Level.SINGLE, law=8, spec=SPEC)
def missing_column(bench: TrainBench) -> None:
    """A batch without a column the objective needs is a BatchError that names it, before anything changes."""
    flat = bench.batch().flat()
    del flat["tokens/advantages"]
    lacking = Batch.from_flat(flat)

    def bad(engine: TrainEngine) -> None:
        error = raises(BatchError, "no column advantages", lambda: engine.train_step(lacking, PolicyGradient()))
        expect("advantages" in str(error), f"the error does not name the column: {error}")

    unharmed(bench, "a batch without advantages", bad)


@check("train.step.unknown_token", level=Level.SINGLE, law=8, spec="errors")
def unknown_token(bench: TrainBench) -> None:
    """A token id outside the vocabulary, on the mask or off it, is an error of ours before anything changes."""
    batch = bench.batch([(2, 3), (1, 4)])

    def bad(engine: TrainEngine) -> None:
        for place, token in ((0, 64), (9, 1 << 20), (5, -1)):
            ids = batch.tokens["input_ids"].clone()
            ids[place] = token
            odd = batch.with_tokens(input_ids=ids)
            step = partial(engine.train_step, odd, PolicyGradient())
            raises(ArealError, f"token {token} of a vocabulary of 64", step)
            raises(ArealError, "the same in forward", partial(engine.forward, odd, frozenset({Output.LOGPROBS})))

    unharmed(bench, "a token outside the vocabulary", bad)


@check("train.step.nothing_trained", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.Objective")
def nothing_trained(bench: TrainBench) -> None:
    """A batch, empty or wholly off the mask, gives no objective a normaliser of 0 and trains nothing."""

    def bad(engine: TrainEngine) -> None:
        for batch in (bench.batch(["000", "0", "0000"]), bench.batch().select([])):
            objective = Watcher()
            try:
                told = engine.train_step(batch, objective)
            except ArealError:
                pass  # said so, which is fine
            else:
                expect(not told.stepped, "a step on nothing was made")
            given = [float(normalizer) for _, _, normalizer in objective.losses]
            expect(all(value > 0.0 for value in given), f"an objective was given the normaliser {given}")

    unharmed(bench, "a step on nothing", bad)


@check("train.step.objective_raises", level=Level.SINGLE, law=5, spec=SPEC)
def objective_raises(bench: TrainBench) -> None:
    """An objective that raises, in the first micro-batch or a later one, is heard, and leaves no gradient behind."""
    for at in (0, 2):

        def bad(engine: TrainEngine, at: int = at) -> None:
            try:
                engine.train_step(bench.batch(), Failing(at, lambda: ZeroDivisionError("by the objective")))
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                expect("by the objective" in told, f"the error does not tell what the objective raised: {told}")
                return
            raise Violation("the objective raised and nobody heard it")

        unharmed(bench, f"an objective that raised in micro-batch {at}", bad, max_tokens_per_microbatch=16)


@check("train.step.version", level=Level.SINGLE, law=1, spec="train#areal_core.contract.train.TrainEngine")
def version(bench: TrainBench) -> None:
    """The version is the core's to set: no step, score or transfer changes it."""
    with bench.engine() as engine:
        for wanted in (engine.version, 7, 8):
            engine.version = wanted
            engine.train_step(bench.batch(), PolicyGradient())
            expect(engine.version == wanted, f"train_step changed the version from {wanted} to {engine.version}")
            engine.forward(bench.batch(), frozenset({Output.LOGPROBS}))
            bench.sent(engine, version=wanted + 1)
            engine.save_weights(bench.folder / f"weights-{wanted}")
            engine.save_state(bench.folder / f"state-{wanted}")
            expect(engine.version == wanted, f"forward, send or save changed {wanted} to {engine.version}")


@check("train.step.leaves_batch", level=Level.SINGLE, law=1, spec="data#areal_core.contract.batch.Batch")
def leaves_batch(bench: TrainBench) -> None:
    """A step writes into no column of its batch and adds none."""
    batch = bench.batch()
    kept = {name: column.clone() for name, column in batch.flat().items()}
    with bench.engine(max_tokens_per_microbatch=15) as engine:
        engine.train_step(batch, PolicyGradient())
        engine.train_step(batch, PolicyGradient())
    same("the batch given to train_step, afterwards", batch.flat(), kept)


@check("train.step.deterministic", level=Level.SINGLE, law=3, spec="train#areal_core.contract.train.TrainSpec")
def deterministic(bench: TrainBench) -> None:
    """Two engines with one seed give the same bits, also where the objective draws; another seed draws otherwise."""
    results = []
    for seed in (5, 5, 6):
        with bench.engine(seed=seed, max_tokens_per_microbatch=20) as engine:
            for step in range(3):
                engine.train_step(bench.batch(seed=step), Drawing())
            results.append(bench.witnessed(engine))
    same("weights after three steps of two engines with one seed", results[1], results[0])
    moved = any(not results[2][name].equal(results[0][name]) for name in results[0])
    expect(moved, "an objective that draws random numbers drew the same ones under seeds 5 and 6")
