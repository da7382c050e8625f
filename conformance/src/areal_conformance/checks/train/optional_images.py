"""Claim `images`: what a sequence shows decides what is said of the tokens after it, and the whole model learns.

Knows: what scores and gradients must be, by transformers with the same images.
Does not know: files, or how an engine runs a vision tower. What is unfit is in `optional_images_refused`.
"""

from __future__ import annotations

from typing import Any

import torch

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.oracles.train_compare import close
from areal_conformance.oracles.train_images import KIND, SIZES, SeeingOracle, showing
from areal_conformance.oracles.train_specs import DESCENT
from areal_conformance.outcome import expect
from areal_core.contract.data import IMAGE_GRID, PIXEL_VALUES
from areal_core.contract.train import Output
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#images"
CLAIM = ("images",)
SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})
ATOL = 1e-4
_PLACEHOLDER = 2
"""The tiny model's image token, counted from its number of words."""


def oracle_of(bench: TrainBench, **arguments: Any) -> tuple[Any, SeeingOracle]:
    """Return a tiny model that sees and its oracle. Any: a path, and the arguments of `make_tiny_model`."""
    model = bench.model(kind=KIND, **arguments)
    return model, SeeingOracle(model)


@check("train.images.scores", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 2))
def scores(bench: TrainBench) -> None:
    """Sequences with several images, one and none are scored as transformers does, each with its own."""
    for tied in (True, False):
        model, oracle = oracle_of(bench, tied=tied)
        batch = showing()
        with bench.engine(*CLAIM, model=model) as engine:
            got = engine.forward(batch, SCORES).tokens
        for name, wanted in oracle.columns(batch).items():
            close(bench, f"{name}, {'tied' if tied else 'untied'}", got[name], wanted, atol=ATOL)


@check("train.images.with_sequences", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 2))
def with_sequences(bench: TrainBench) -> None:
    """Images stay with their sequences through micro-batches and in any order."""
    model, oracle = oracle_of(bench)
    batch = showing(seed=1)
    orders = (list(range(len(SIZES))), [4, 2, 5, 0, 3, 1], [1, 4], [5])
    for budget in (26, 40, 16384):
        with bench.engine(*CLAIM, model=model, max_tokens_per_microbatch=budget) as engine:
            for rows in orders:
                chosen = batch.select(rows)
                got = engine.forward(chosen, SCORES).tokens
                for name, wanted in oracle.columns(chosen).items():
                    what = f"{name} of sequences {rows}, {budget} tokens a micro-batch"
                    close(bench, what, got[name], wanted, atol=ATOL)


@check("train.images.places", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 2))
def places(bench: TrainBench) -> None:
    """Height and width are not taken for one another, and a longer image moves the words after it."""
    model, oracle = oracle_of(bench)
    for sizes in ([[(1, 6)]], [[(6, 1)]], [[(2, 3)]], [[(3, 2)]]):
        batch = showing(sizes, seed=2)
        with bench.engine(*CLAIM, model=model) as engine:
            got = engine.forward(batch, SCORES).tokens["logprobs"]
        close(bench, f"log-probs after an image of {sizes}", got, oracle.columns(batch)[Output.LOGPROBS], atol=ATOL)


@check("train.images.said", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 2))
def said(bench: TrainBench) -> None:
    """A placeholder that the policy said stands for no image: it is scored as a word, and moves no image."""
    model, oracle = oracle_of(bench)
    for sizes in (SIZES, ((), ())):
        batch = showing(sizes, seed=3)
        ids = batch.tokens["input_ids"].clone()
        ids[batch.tokens["loss_mask"].nonzero().flatten()[::2]] = 64 + _PLACEHOLDER
        batch = batch.with_tokens(input_ids=ids)
        with bench.engine(*CLAIM, model=model) as engine:
            got = engine.forward(batch, SCORES).tokens["logprobs"]
        close(bench, "log-probs of placeholders that were said", got, oracle.columns(batch)[Output.LOGPROBS], atol=ATOL)


@check("train.images.gradient", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 2))
def gradient(bench: TrainBench) -> None:
    """A step follows the gradient of every parameter, those that see included, whatever the micro-batches."""
    model, oracle = oracle_of(bench)
    base = read_folder(model)
    for sizes, budget in ((SIZES, 16384), (SIZES, 26), (((), ()), 16384)):
        batch = showing(sizes, seed=4)
        wanted = oracle.gradient(batch, PolicyGradient())
        with bench.engine(*CLAIM, model=model, optimizer=DESCENT, max_tokens_per_microbatch=budget) as engine:
            engine.train_step(batch, PolicyGradient())
            sent = bench.sent(engine)
        odd = sorted(set(sent) ^ set(base))
        expect(not odd, f"other tensors are sent than the folder has: {odd[:4]}")
        for name, slope in wanted.items():
            made = base[name].double() - sent[name].double()
            what = f"the gradient of {name}, {budget} tokens a micro-batch, images of {sizes}"
            close(bench, what, made, slope, atol=2e-4, rtol=5e-3)


@check("train.images.kept", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 2))
def kept(bench: TrainBench) -> None:
    """`forward` gives images back as they came, in the same order."""
    model, _ = oracle_of(bench)
    batch = showing(seed=5)
    before = {name: column.clone() for name, column in batch.flat().items()}
    with bench.engine(*CLAIM, model=model, max_tokens_per_microbatch=26) as engine:
        result = engine.forward(batch, SCORES)
    for what, held in (("the batch returned", result.flat()), ("the batch given", batch.flat())):
        for name in (f"{table}/{each}" for table in ("media", "counts") for each in (PIXEL_VALUES, IMAGE_GRID)):
            expect(name in held and torch.equal(held[name], before[name]), f"{what} has other {name} than it came with")


@check("train.images.folder", level=Level.SINGLE, law=2, spec=SPEC, requires=CLAIM, since=(1, 2))
def folder(bench: TrainBench) -> None:
    """A folder written from a model that sees is one: every tensor of the start, its processor, its configuration."""
    model, _ = oracle_of(bench)
    path = bench.folder / "written"
    with bench.engine(*CLAIM, model=model) as engine:
        engine.save_weights(path)
    base, written = read_folder(model), read_folder(path)
    expect(set(base) == set(written), f"other tensors are written: {sorted(set(base) ^ set(written))[:4]}")
    odd = [name for name, tensor in base.items() if not torch.equal(tensor, written[name])]
    expect(not odd, f"tensors are written otherwise than they were read: {odd[:4]}")
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            expect((path / file.name).is_file(), f"{file.name} is missing from the folder written")
