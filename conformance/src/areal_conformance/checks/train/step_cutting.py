"""How a batch is cut into micro-batches, and what an objective sees of it.

Knows: an objective that watches.
Does not know: the right gradient (`step_numbers`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.forward import shapes_drawn
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, number, weights_close
from areal_conformance.oracles.train_objectives import Watcher
from areal_conformance.oracles.train_optimizer import SCALED
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, TrainReport
from areal_torch.testing.objectives import PolicyGradient

SPEC, ENGINES = "train#areal_core.contract.train.Objective", "train#training-engines-and-objectives"
BUDGET = 15
ATOL = 2e-5


def watched(bench: TrainBench, batch: Batch, tokens: int = BUDGET) -> tuple[Watcher, TrainReport]:
    """Make one step on a batch whose sequences are numbered; return what the objective saw, and the report."""
    objective = Watcher()
    numbered = batch.with_sequences(number=torch.arange(batch.num_sequences)).with_tokens(
        place=torch.arange(batch.num_tokens)
    )
    with bench.engine(max_tokens_per_microbatch=tokens) as engine:
        report = engine.train_step(numbered, objective)
    return objective, report


def stepped(bench: TrainBench, batch: Batch, tokens: int) -> Mapping[str, Tensor]:
    """Return the weights after two steps with this budget."""
    with bench.engine(optimizer=SCALED, max_tokens_per_microbatch=tokens) as engine:
        for _ in range(2):
            engine.train_step(batch, PolicyGradient())
        return bench.witnessed(engine)


@check("train.step.whole_sequences", level=Level.SINGLE, law=6, spec=SPEC)
def whole_sequences(bench: TrainBench) -> None:
    """An objective sees every sequence exactly once, whole, with all its columns, within the budget."""
    for seed in (1, 2, 3):
        batch = bench.batch([*shapes_drawn(seed, 7, longest=BUDGET), "0" * (BUDGET - 1) + "1"], seed=seed)
        objective, _ = watched(bench, batch)
        seen: list[int] = []
        for _, part, _ in objective.losses:
            expect(part.num_tokens <= BUDGET, f"a micro-batch has {part.num_tokens} tokens, the budget is {BUDGET}")
            numbers = part.sequences["number"].tolist()
            seen += numbers
            wanted = batch.select(numbers).flat()
            got = part.to("cpu").flat()
            for name, column in wanted.items():
                expect(name in got, f"the micro-batch lacks the column {name}")
                alike = got[name].equal(column) or bool(column.isnan().any())
                expect(alike, f"column {name} of sequences {numbers} is not the batch's: {got[name].tolist()}")
        once = sorted(seen) == list(range(batch.num_sequences))
        expect(once, f"the objective saw sequences {sorted(seen)} of {batch.num_sequences}, expected each once")


@check("train.step.columns", level=Level.SINGLE, law=1, spec=SPEC)
def columns(bench: TrainBench) -> None:
    """An objective gets the columns it asks for, float32 [T] with gradient, aligned with the micro-batch it gets."""
    oracle = Oracle(bench.model())
    objective, _ = watched(bench, bench.batch([*shapes_drawn(4, 6), (2, 5)]))
    for given, part, _ in objective.losses:
        on_cpu = part.to("cpu")
        wanted = oracle.columns(on_cpu)
        for name in (Output.LOGPROBS, Output.ENTROPY):
            column = given.get(name)
            expect(column is not None, f"the objective asked for {name} and got {sorted(given)}")
            assert column is not None
            shape = tuple(column.shape)
            expect(str(column.dtype) == "torch.float32", f"{name} given to the objective is {column.dtype}")
            expect(shape == (part.num_tokens,), f"{name} has shape {shape} for {part.num_tokens} tokens")
            expect(column.device == part.device, f"{name} is on {column.device}, the micro-batch on {part.device}")
            expect(column.requires_grad or not bool(part.tokens["loss_mask"].any()), f"{name} carries no gradient")
            close(bench, f"{name} given to the objective", column, wanted[name], atol=5e-5)


@check("train.step.normalizer_given", level=Level.SINGLE, law=6, spec=SPEC)
def normalizer_given(bench: TrainBench) -> None:
    """Every `loss` call gets the same normaliser: float64, a scalar, positive, the sum over the whole batch."""
    batch = bench.batch(["0111111", "00000", "0001", "00", "011", "0111111111"])
    objective, _ = watched(bench, batch)
    total = float(batch.tokens["loss_mask"].sum())
    expect(len(objective.losses) > 2, f"{batch.num_tokens} tokens were cut into {len(objective.losses)} micro-batches")
    for _, part, normalizer in objective.losses:
        facts = (str(normalizer.dtype), tuple(normalizer.shape), float(normalizer))
        expect(facts == ("torch.float64", (), total), f"the normaliser is {facts}, expected float64, scalar, {total}")
        expect(normalizer.device == part.device, f"the normaliser is on {normalizer.device}, not on {part.device}")
    counted = sum(float(part.tokens["loss_mask"].sum()) for part in objective.normalized)
    expect(counted == total, f"`normalizer` was asked for {counted} trained tokens in all, the batch has {total}")


@check("train.step.metrics", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.Sum")
def metrics(bench: TrainBench) -> None:
    """Metrics are added over micro-batches, value and weight apart, those of a single micro-batch among them.

    An extreme that others tell with the weight 0, of nothing, is what it is.
    """
    batch = bench.batch()
    objective, report = watched(bench, batch)
    calls = len(objective.losses)
    wanted = {"tokens": (float(batch.num_tokens), float(calls)), "only_first": (3.0, 2.0)}
    wanted["share"] = (report.loss, float(batch.num_tokens))
    wanted |= {"first_min": (5.0, 1.0), "first_max": (-5.0, 1.0)}
    expect(set(report.metrics) == set(wanted), f"metrics are {sorted(report.metrics)}, expected {sorted(wanted)}")
    for name, (value, weight) in wanted.items():
        entry = report.metrics[name]
        number(bench, f"value of metric {name}", entry.value, value, atol=1e-5, rtol=1e-5)
        number(bench, f"weight of metric {name}", entry.weight, weight)


@check("train.step.report", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.TrainReport")
def report(bench: TrainBench) -> None:
    """The report tells the truth: micro-batches made, tokens of the batch, a duration, a plain float each."""
    for tokens in (16384, 40, BUDGET):
        batch = bench.batch(["0" * 10 + "1", (2, 3), (4, 9), "000"], seed=tokens)
        began = time.perf_counter()
        objective, told = watched(bench, batch, tokens)
        passed = time.perf_counter() - began
        calls, made = len(objective.losses), told.num_microbatches
        expect(made == calls, f"num_microbatches is {made}, the objective was called {calls} times")
        expect(told.num_tokens == batch.num_tokens, f"num_tokens is {told.num_tokens}, expected {batch.num_tokens}")
        expect(0.0 < told.seconds <= passed + 1.0, f"the step says it took {told.seconds} s, it took {passed:.3f}")
        expect(told.stepped is True, f"stepped is {told.stepped!r}")
        for name in ("loss", "grad_norm", "lr", "seconds"):
            expect(type(getattr(told, name)) is float, f"{name} is a {type(getattr(told, name)).__name__}")


@check("train.step.budget", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.TrainSpec")
def budget(bench: TrainBench) -> None:
    """The same batch trains the same weights whatever the micro-batch budget."""
    batch = bench.batch(["0111111111", "000000001", (1, 1), (4, 9), "0000", (2, 3), (1, 5)])
    whole = stepped(bench, batch, 16384)
    for tokens in (30, 17, 13):
        what = f"weights with {tokens} tokens a micro-batch"
        weights_close(bench, what, stepped(bench, batch, tokens), whole, atol=ATOL)


@check("train.step.order", level=Level.SINGLE, law=6, spec=SPEC)
def order(bench: TrainBench) -> None:
    """The order in which sequences are packed does not change what is trained."""
    batch = bench.batch([*shapes_drawn(9, 5), (4, 9), (2, 3)])
    straight = stepped(bench, batch, 16)
    for seed in (1, 2):
        rows = list(range(batch.num_sequences))
        random.Random(seed).shuffle(rows)
        weights_close(bench, f"weights in order {rows}", stepped(bench, batch.select(rows), 16), straight, atol=ATOL)


@check("train.packing.fills", level=Level.SINGLE, law=6, spec=ENGINES, requires=("packing",))
def packing_fills(bench: TrainBench) -> None:
    """Short sequences share micro-batches: no more of them than twice what the budget asks for."""
    batch = bench.batch([(1, 2)] * 40)
    objective, told = watched(bench, batch, 30)
    most = 2 * -(-batch.num_tokens // 30)
    made = f"{batch.num_tokens} tokens in 40 sequences took {told.num_microbatches} micro-batches of 30"
    expect(told.num_microbatches <= most, f"{made}, at most {most}")
    expect(len(objective.losses) == told.num_microbatches, f"the objective was called {len(objective.losses)} times")
