"""The columns `forward` computes, against transformers run one sequence at a time, and what they must not depend on.

Knows: what each column must hold, and batches that differ in what may not matter.
Does not know: gradients; values have a module of their own.
"""

from __future__ import annotations

import random
from itertools import pairwise

import torch
from torch import Tensor

from areal_conformance.benches.train import Shape, TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.state import without_effect
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import SCORES, close, columns_close, same, scored
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

ATOL = 5e-5
ALIKE = 2e-5
SPEC = "train#areal_core.contract.train.Output"
FORWARD = "train#areal_core.contract.train.TrainEngine.forward"
EVERY_SPAN = "index#alignment"


def shapes_drawn(seed: int, count: int, longest: int = 12) -> list[Shape]:
    """Return random masks: any length from 1, any tokens but the first on the mask, some sequences with none."""
    draw = random.Random(seed)
    masks: list[Shape] = []
    for _ in range(count):
        length = draw.randint(1, longest)
        density = draw.choice([0.0, 0.3, 0.7, 1.0])
        masks.append("0" + "".join("1" if draw.random() < density else "0" for _ in range(length - 1)))
    return masks


@check("train.forward.logprobs", level=Level.SINGLE, law=1, spec=SPEC)
def logprobs(bench: TrainBench) -> None:
    """`forward` gives log p(token t | tokens < t) at position t, for every kind of model, tied and untied."""
    for kind in bench.target.adapter.models:
        for tied in (True, False):
            model = bench.model(kind=kind, tied=tied)
            batch = bench.batch()
            with bench.engine(model=model) as engine:
                got = engine.forward(batch, frozenset({Output.LOGPROBS})).tokens["logprobs"]
            wanted = Oracle(model).columns(batch)[Output.LOGPROBS]
            close(bench, f"logprobs of {kind}, {'tied' if tied else 'untied'}", got, wanted, atol=ATOL)


@check("train.forward.entropy", level=Level.SINGLE, law=1, spec=SPEC)
def entropy(bench: TrainBench) -> None:
    """`forward` gives the entropy in nats of the distribution token t was drawn from."""
    _at_temperatures(bench, (1.0, 0.6), frozenset({Output.ENTROPY}), seed=1)


@check("train.forward.temperature", level=Level.SINGLE, law=1, spec="train#areal_core.contract.train.TrainSpec")
def temperature(bench: TrainBench) -> None:
    """The temperature of the spec divides the logits before the log-softmax."""
    _at_temperatures(bench, (0.3, 0.85, 1.7), SCORES, seed=2, atol=2 * ATOL)


@check("train.forward.off_mask", level=Level.SINGLE, law=1, spec=SPEC)
def off_mask(bench: TrainBench) -> None:
    """Log-probs and entropy are exactly 0 off the mask and at the first token, and float32 [T]."""
    batch = bench.batch(["00100", "0", "0111", "000", "01", "0101010", "00000001"])
    first = batch.positions == 0
    batch = batch.with_tokens(loss_mask=batch.tokens["loss_mask"] | (first & (batch.sequence_ids % 2 == 0)))
    with bench.engine() as engine:
        got = engine.forward(batch, SCORES)
    for name in sorted(SCORES):
        column = got.tokens[name]
        facts, right = (column.dtype, tuple(column.shape)), (torch.float32, (batch.num_tokens,))
        expect(facts == right, f"{name} is {facts}, expected {right}")
        expect(column.device == batch.device, f"{name} is on {column.device}, the batch is on {batch.device}")
        expect(not column.requires_grad, f"{name} carries a gradient; forward computes none")
        outside = column[first | ~batch.tokens["loss_mask"]]
        expect(not outside.any(), f"{name} is not 0 off the mask or at a first token: {outside.tolist()}")
        inside = column[~first & batch.tokens["loss_mask"]]
        expect(bool(inside.all()), f"{name} is 0 at a token on the mask: {inside.tolist()}")


@check("train.forward.any_mask", level=Level.SINGLE, law=1, spec=SPEC)
def any_mask(bench: TrainBench) -> None:
    """Columns are right for any lengths from 1 and any masks, wholly masked sequences and batches included."""
    model = bench.model(hidden=32)
    oracle = Oracle(model, temperature=0.9)
    drawn = [shapes_drawn(seed, 1 + seed) for seed in range(8)]
    by_hand: list[list[Shape]] = [["0"], ["00"], ["01"], ["0", "0", "0"], ["0000", "000"], ["01", "01", "01"], ["0001"]]
    with bench.engine(model=model, temperature=0.9, max_tokens_per_microbatch=16) as engine:
        for number, shapes in enumerate([*by_hand, *drawn]):
            scored(bench, f"of masks {shapes}", engine, oracle, bench.batch(shapes, seed=number), atol=ATOL)


@check("train.forward.full_length", level=Level.SINGLE, law=1, spec=SPEC)
def full_length(bench: TrainBench) -> None:
    """A sequence as long as the context, beside short ones, is scored to its last token."""
    model = bench.model(hidden=32, max_position=160)
    batch = bench.batch([(2, 3), (80, 80), (1, 159), (1, 1), (3, 60)])
    with bench.engine(model=model) as engine:
        scored(bench, "of long sequences", engine, Oracle(model), batch, atol=2 * ATOL)


@check("train.forward.extreme_logits", level=Level.SINGLE, law=1, spec=SPEC)
def extreme_logits(bench: TrainBench) -> None:
    """At a very low temperature, log-probs and entropy stay finite and right: nothing is clipped or infinite."""
    batch = bench.batch(seed=5)
    with bench.engine(temperature=0.02) as engine:
        got = engine.forward(batch, SCORES)
    wanted = Oracle(bench.model(), temperature=0.02).columns(batch)
    expect(wanted[Output.LOGPROBS].min() < -60.0, "the oracle's log-probs are not extreme enough to tell")
    columns_close(bench, "at temperature 0.02", got, wanted, atol=3e-3, rtol=1e-5)


@check("train.forward.outputs", level=Level.SINGLE, law=1, spec=FORWARD)
def outputs(bench: TrainBench) -> None:
    """A column is the same whether it is asked for alone or with others, and no other column is added."""
    batch = bench.batch(seed=3)
    before = {str(name) for name in batch.tokens.keys()}  # noqa: SIM118
    with bench.engine(temperature=0.8) as engine:
        both = engine.forward(batch, SCORES)
        for name in sorted(SCORES):
            alone = engine.forward(batch, frozenset({name}))
            added = {str(column) for column in alone.tokens.keys()} - before  # noqa: SIM118
            expect(added <= {str(name)}, f"asked for {name} alone, forward added {sorted(added)}")
            close(bench, f"{name} alone and with others", alone.tokens[name], both.tokens[name], atol=ALIKE)


def split(engine: TrainEngine, batch: Batch) -> list[dict[str, Tensor]]:
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
            together = split(engine, batch)
            for number in range(batch.num_sequences):
                alone = split(engine, batch.select([number]))[0]
                for name in sorted(SCORES):
                    what = f"{name} of sequence {number}, alone and packed with {batch.num_sequences - 1} others"
                    close(bench, what, together[number][name], alone[name], atol=ALIKE)


@check("train.forward.order", level=Level.SINGLE, law=6, spec=EVERY_SPAN)
def order(bench: TrainBench) -> None:
    """The order in which sequences are packed changes no column, and rows come back where they were."""
    with bench.engine(max_tokens_per_microbatch=30) as engine:
        batch = bench.batch([*shapes_drawn(11, 6), (3, 4), (2, 9), (3, 4), (1, 1)])
        straight = split(engine, batch)
        for seed in range(4):
            rows = list(range(batch.num_sequences))
            random.Random(seed).shuffle(rows)
            for row, columns in zip(rows, split(engine, batch.select(rows)), strict=True):
                for name in sorted(SCORES):
                    what = f"{name} of sequence {row} in order {rows}"
                    close(bench, what, columns[name], straight[row][name], atol=ALIKE)


@check("train.forward.budget", level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.TrainSpec")
def budget(bench: TrainBench) -> None:
    """The micro-batch budget changes no column, down to one sequence a micro-batch."""
    batch = bench.batch([*shapes_drawn(7, 8), (4, 9), (4, 9), (1, 1)])
    results = []
    for tokens in (16384, 40, 17, 13):
        with bench.engine(max_tokens_per_microbatch=tokens) as engine:
            results.append({name: engine.forward(batch, SCORES).tokens[name] for name in SCORES})
            for name in sorted(SCORES):
                what = f"{name} with {tokens} tokens a micro-batch"
                close(bench, what, results[-1][name], results[0][name], atol=ALIKE)


@check("train.forward.causal", level=Level.SINGLE, law=1, spec=EVERY_SPAN)
def causal(bench: TrainBench) -> None:
    """The column at token t depends on no later token."""
    batch = bench.batch([(1, 11), (2, 6)])
    later = batch.tokens["input_ids"].clone()
    later[8:12] = (later[8:12] - 3 + 17) % 60 + 3
    with bench.engine() as engine:
        before = engine.forward(batch, SCORES)
        after = engine.forward(batch.with_tokens(input_ids=later), SCORES)
    for name in sorted(SCORES):
        close(bench, f"{name} before a changed token", after.tokens[name][:8], before.tokens[name][:8], atol=ALIKE)
    alike = after.tokens["logprobs"][8:12].equal(before.tokens["logprobs"][8:12])
    expect(not alike, "logprobs of changed tokens are those of the tokens before the change")


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
            got, wanted = (
                {name: column for name, column in columns.items() if name.removeprefix("tokens/") not in asked}
                for columns in (result.flat(), kept)
            )
            same("the columns forward returns beside those asked for", got, wanted)


@check("train.forward.repeatable", level=Level.SINGLE, law=3, spec=FORWARD)
def repeatable(bench: TrainBench) -> None:
    """The same batch gives the same bits again, whatever was scored in between; dropout is off."""
    batch, other = bench.batch(seed=1), bench.batch([(3, 3), (8, 2)], seed=2)
    with bench.engine() as engine:
        first = engine.forward(batch, SCORES).flat()
        engine.forward(other, SCORES)
        same("forward of the same batch, twice", engine.forward(batch, SCORES).flat(), first)


@check("train.forward.fresh_tokens", level=Level.SINGLE, law=1, spec=FORWARD)
def fresh_tokens(bench: TrainBench) -> None:
    """Another batch of the same shapes gets its own columns, not those remembered from the first."""
    oracle = Oracle(bench.model())
    with bench.engine() as engine:
        for seed in (1, 2, 3):
            scored(bench, f"of batch {seed}", engine, oracle, bench.batch(seed=seed), atol=ATOL)


@check("train.forward.no_effect", level=Level.SINGLE, law=3, spec=FORWARD)
def no_effect(bench: TrainBench) -> None:
    """Scoring changes nothing: weights, version, random state and the steps after it are those without it."""

    def score(engine: TrainEngine, step: int) -> None:
        before, engine.version = bench.witnessed(engine), 6
        engine.forward(bench.batch([(2, 7), (1, 1)], seed=9), SCORES)
        same("weights after forward", bench.witnessed(engine), before)
        expect(engine.version == 6, f"forward changed the version from 6 to {engine.version}")

    without_effect(bench, "each scored after", score)


@check("train.forward.follows_weights", level=Level.SINGLE, law=7, spec=FORWARD)
def follows_weights(bench: TrainBench) -> None:
    """After each step, `forward` scores with the weights the engine then holds."""
    for tied in (True, False):
        model = bench.model(tied=tied)
        oracle = Oracle(model)
        batch = bench.batch(seed=4)
        with bench.engine(model=model) as engine:
            for step in range(3):
                engine.train_step(bench.batch(seed=step), PolicyGradient())
                now = oracle.load(bench.witnessed(engine))
                scored(bench, f"after {step + 1} steps", engine, now, batch, atol=1e-4)


@check("train.forward.empty", level=Level.SINGLE, law=6, spec="train#training-engines-and-objectives")
def empty(bench: TrainBench) -> None:
    """An empty shard is scored like any other: it comes back with empty columns."""
    batch = bench.batch([(2, 3), (1, 2)]).select([])
    with bench.engine() as engine:
        got = engine.forward(batch, SCORES)
    expect(got.num_sequences == 0, f"an empty batch came back with {got.num_sequences} sequences")
    for name in sorted(SCORES):
        shape = tuple(got.tokens[name].shape)
        expect(shape == (0,), f"{name} of an empty batch has shape {shape}, expected (0,)")


def _at_temperatures(
    bench: TrainBench, temperatures: tuple[float, ...], asked: frozenset[Output], *, seed: int, atol: float = ATOL
) -> None:
    batch = bench.batch(seed=seed)
    for value in temperatures:
        with bench.engine(temperature=value) as engine:
            got = engine.forward(batch, asked)
        wanted = Oracle(bench.model(), temperature=value).columns(batch)
        columns_close(bench, f"at temperature {value}", got, {name: wanted[name] for name in sorted(asked)}, atol=atol)
