"""The columns `forward` computes, against transformers run one sequence at a time.

Knows: what each column must hold.
Does not know: gradients; values have a module of their own.
"""

from __future__ import annotations

import random

import torch

from areal_conformance.benches.train import Shape, TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close
from areal_conformance.outcome import expect
from areal_core.contract.train import Output

SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})
ATOL = 5e-5
SPEC = "train#areal_core.contract.train.Output"


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
    batch = bench.batch(seed=1)
    for temperature in (1.0, 0.6):
        with bench.engine(temperature=temperature) as engine:
            got = engine.forward(batch, frozenset({Output.ENTROPY})).tokens["entropy"]
        wanted = Oracle(bench.model(), temperature=temperature).columns(batch)[Output.ENTROPY]
        close(bench, f"entropy at temperature {temperature}", got, wanted, atol=ATOL)


@check("train.forward.temperature", level=Level.SINGLE, law=1, spec="train#areal_core.contract.train.TrainSpec")
def temperature(bench: TrainBench) -> None:
    """The temperature of the spec divides the logits before the log-softmax."""
    batch = bench.batch(seed=2)
    for value in (0.3, 0.85, 1.7):
        with bench.engine(temperature=value) as engine:
            got = engine.forward(batch, SCORES)
        wanted = Oracle(bench.model(), temperature=value).columns(batch)
        for name in SCORES:
            close(bench, f"{name} at temperature {value}", got.tokens[name], wanted[name], atol=2 * ATOL)


@check("train.forward.off_mask", level=Level.SINGLE, law=1, spec=SPEC)
def off_mask(bench: TrainBench) -> None:
    """Log-probs and entropy are exactly 0 off the mask and at the first token, and float32 [T]."""
    batch = bench.batch(["00100", "0", "0111", "000", "01", "0101010", "00000001"])
    first = batch.positions == 0
    batch = batch.with_tokens(loss_mask=batch.tokens["loss_mask"] | (first & (batch.sequence_ids % 2 == 0)))
    with bench.engine() as engine:
        got = engine.forward(batch, SCORES)
    for name in SCORES:
        column = got.tokens[name]
        expect(
            column.dtype is torch.float32 and tuple(column.shape) == (batch.num_tokens,),
            f"{name} is {column.dtype} {tuple(column.shape)}, expected torch.float32 ({batch.num_tokens},)",
        )
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
            batch = bench.batch(shapes, seed=number)
            got = engine.forward(batch, SCORES)
            wanted = oracle.columns(batch)
            for name in SCORES:
                close(bench, f"{name} of masks {shapes}", got.tokens[name], wanted[name], atol=ATOL)


@check("train.forward.full_length", level=Level.SINGLE, law=1, spec=SPEC)
def full_length(bench: TrainBench) -> None:
    """A sequence as long as the context, beside short ones, is scored to its last token."""
    model = bench.model(hidden=32, max_position=160)
    batch = bench.batch([(2, 3), (80, 80), (1, 159), (1, 1), (3, 60)])
    with bench.engine(model=model) as engine:
        got = engine.forward(batch, SCORES)
    wanted = Oracle(model).columns(batch)
    for name in SCORES:
        close(bench, f"{name} of long sequences", got.tokens[name], wanted[name], atol=2 * ATOL)


@check("train.forward.extreme_logits", level=Level.SINGLE, law=1, spec=SPEC)
def extreme_logits(bench: TrainBench) -> None:
    """At a very low temperature, log-probs and entropy stay finite and right: nothing is clipped or infinite."""
    batch = bench.batch(seed=5)
    with bench.engine(temperature=0.02) as engine:
        got = engine.forward(batch, SCORES)
    wanted = Oracle(bench.model(), temperature=0.02).columns(batch)
    expect(wanted[Output.LOGPROBS].min() < -60.0, "the oracle's log-probs are not extreme enough to tell")
    for name in SCORES:
        close(bench, f"{name} at temperature 0.02", got.tokens[name], wanted[name], atol=3e-3, rtol=1e-5)


@check("train.forward.outputs", level=Level.SINGLE, law=1, spec="train#areal_core.contract.train.TrainEngine.forward")
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
            close(bench, f"{name} alone and with others", alone.tokens[name], both.tokens[name], atol=1e-6)
