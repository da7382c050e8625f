"""What a column must not depend on: neighbours, order, budget, or that it was computed before.

Knows: batches that differ in what may not matter.
Does not know: the right numbers (`forward_numbers`).
"""

from __future__ import annotations

import random
from itertools import pairwise

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.forward_numbers import SCORES, shapes_drawn
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.oracles.train_objectives import Drawing
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

ATOL = 2e-5
SPEC = "train#areal_core.contract.train.TrainEngine.forward"
EVERY_SPAN = "index#alignment"


def scored(engine: TrainEngine, batch: Batch) -> list[dict[str, Tensor]]:
    """Return the columns of each sequence."""
    result = engine.forward(batch, SCORES)
    ends = batch.cu_seqlens.tolist()
    return [{str(name): result.tokens[name][start:stop] for name in SCORES} for start, stop in pairwise(ends)]


@check("train.forward.neighbours", level=Level.SINGLE, law=6, spec=EVERY_SPAN)
def neighbours(bench: TrainBench) -> None:
    """Packed sequences do not see each other: each has the columns it has alone."""
    with bench.engine() as engine:
        for seed in range(3):
            batch = bench.batch([*shapes_drawn(seed, 5), (3, 4), (3, 4), (2, 9)], seed=seed)
            together = scored(engine, batch)
            for number in range(batch.num_sequences):
                alone = scored(engine, batch.select([number]))[0]
                for name in SCORES:
                    what = f"{name} of sequence {number}, alone and packed with {batch.num_sequences - 1} others"
                    close(bench, what, together[number][name], alone[name], atol=ATOL)


@check("train.forward.order", level=Level.SINGLE, law=6, spec=EVERY_SPAN)
def order(bench: TrainBench) -> None:
    """The order in which sequences are packed changes no column, and rows come back where they were."""
    with bench.engine(max_tokens_per_microbatch=30) as engine:
        batch = bench.batch([*shapes_drawn(11, 6), (3, 4), (2, 9), (3, 4), (1, 1)])
        straight = scored(engine, batch)
        for seed in range(4):
            rows = list(range(batch.num_sequences))
            random.Random(seed).shuffle(rows)
            shuffled = scored(engine, batch.select(rows))
            for place, row in enumerate(rows):
                for name in SCORES:
                    close(
                        bench,
                        f"{name} of sequence {row} in order {rows}",
                        shuffled[place][name],
                        straight[row][name],
                        atol=ATOL,
                    )


@check("train.forward.budget", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.TrainSpec")
def budget(bench: TrainBench) -> None:
    """The micro-batch budget changes no column, down to one sequence a micro-batch."""
    batch = bench.batch([*shapes_drawn(7, 8), (4, 9), (4, 9), (1, 1)])
    results = {}
    for tokens in (16384, 40, 17, 13):
        with bench.engine(max_tokens_per_microbatch=tokens) as engine:
            results[tokens] = engine.forward(batch, SCORES)
    for tokens, result in results.items():
        for name in SCORES:
            close(
                bench,
                f"{name} with {tokens} tokens a micro-batch",
                result.tokens[name],
                results[16384].tokens[name],
                atol=ATOL,
            )


@check("train.forward.causal", level=Level.SINGLE, law=1, spec=EVERY_SPAN)
def causal(bench: TrainBench) -> None:
    """The column at token t depends on no later token."""
    batch = bench.batch([(1, 11), (2, 6)])
    later = batch.tokens["input_ids"].clone()
    later[8:12] = (later[8:12] - 3 + 17) % 60 + 3
    with bench.engine() as engine:
        before = engine.forward(batch, SCORES)
        after = engine.forward(batch.with_tokens(input_ids=later), SCORES)
    for name in SCORES:
        close(bench, f"{name} before a changed token", after.tokens[name][:8], before.tokens[name][:8], atol=ATOL)
    expect(
        not after.tokens["logprobs"][8:12].equal(before.tokens["logprobs"][8:12]),
        "logprobs of changed tokens are those of the tokens before the change",
    )


@check("train.forward.leaves_batch", level=Level.SINGLE, law=1, spec="data#areal_core.contract.batch.Batch")
def leaves_batch(bench: TrainBench) -> None:
    """`forward` keeps every other column, the tables and their order, and writes into nothing it was given."""
    batch = bench.batch(["0110", (3, 4), "0", (1, 9), (2, 2)], seed=8)
    batch = batch.with_tokens(routes=torch.arange(2 * batch.num_tokens).reshape(-1, 2)).with_sequences(
        image=torch.arange(batch.num_sequences * 6, dtype=torch.float64).reshape(-1, 2, 3)
    )
    kept = {name: column.clone() for name, column in batch.flat().items()}
    with bench.engine(max_tokens_per_microbatch=14) as engine:
        for asked in (SCORES, frozenset({Output.ENTROPY}), frozenset({Output.LOGPROBS})):
            result = engine.forward(batch, asked)
            same("the batch given to forward, afterwards", batch.flat(), kept)
            others = {
                name: column for name, column in result.flat().items() if name.removeprefix("tokens/") not in asked
            }
            wanted = {name: column for name, column in kept.items() if name.removeprefix("tokens/") not in asked}
            same("the columns forward returns beside those asked for", others, wanted)


@check("train.forward.repeatable", level=Level.SINGLE, law=3, spec=SPEC)
def repeatable(bench: TrainBench) -> None:
    """The same batch gives the same bits again, whatever was scored in between; dropout is off."""
    batch, other = bench.batch(seed=1), bench.batch([(3, 3), (8, 2)], seed=2)
    with bench.engine() as engine:
        first = engine.forward(batch, SCORES).flat()
        engine.forward(other, SCORES)
        same("forward of the same batch, twice", engine.forward(batch, SCORES).flat(), first)


@check("train.forward.fresh_tokens", level=Level.SINGLE, law=1, spec=SPEC)
def fresh_tokens(bench: TrainBench) -> None:
    """Another batch of the same shapes gets its own columns, not those remembered from the first."""
    oracle = Oracle(bench.model())
    with bench.engine() as engine:
        for seed in (1, 2, 3):
            batch = bench.batch(seed=seed)
            got = engine.forward(batch, SCORES)
            close(bench, f"batch {seed}", got.tokens["logprobs"], oracle.columns(batch)[Output.LOGPROBS], atol=5e-5)


@check("train.forward.no_effect", level=Level.SINGLE, law=3, spec=SPEC)
def no_effect(bench: TrainBench) -> None:
    """Scoring changes nothing: weights, version, random state and the steps after it are those without it."""
    batch = bench.batch()
    weights = []
    for scoring in (False, True):
        with bench.engine() as engine:
            for _ in range(2):
                engine.train_step(batch, Drawing())
                engine.version = 6
                if scoring:
                    before = bench.witnessed(engine)
                    engine.forward(bench.batch([(2, 7), (1, 1)], seed=9), SCORES)
                    same("weights after forward", bench.witnessed(engine), before)
                    expect(engine.version == 6, f"forward changed the version from 6 to {engine.version}")
            engine.train_step(batch, Drawing())
            weights.append(bench.witnessed(engine))
    same("weights after three steps, with and without scoring between them", weights[1], weights[0])


@check("train.forward.follows_weights", level=Level.SINGLE, law=7, spec=SPEC)
def follows_weights(bench: TrainBench) -> None:
    """After each step, `forward` scores with the weights the engine then holds."""
    for tied in (True, False):
        model = bench.model(tied=tied)
        oracle = Oracle(model)
        batch = bench.batch(seed=4)
        with bench.engine(model=model) as engine:
            for step in range(3):
                engine.train_step(bench.batch(seed=step), PolicyGradient())
                got = engine.forward(batch, SCORES)
                wanted = oracle.load(bench.witnessed(engine)).columns(batch)
                for name in SCORES:
                    close(bench, f"{name} after {step + 1} steps", got.tokens[name], wanted[name], atol=1e-4)


@check("train.forward.empty", level=Level.SINGLE, law=6, spec="train#training-engines-and-objectives")
def empty(bench: TrainBench) -> None:
    """An empty shard is scored like any other: it comes back with empty columns."""
    batch = bench.batch([(2, 3), (1, 2)]).select([])
    with bench.engine() as engine:
        got = engine.forward(batch, SCORES)
    expect(got.num_sequences == 0, f"an empty batch came back with {got.num_sequences} sequences")
    for name in SCORES:
        shape = tuple(got.tokens[name].shape)
        expect(shape == (0,), f"{name} of an empty batch has shape {shape}, expected (0,)")
