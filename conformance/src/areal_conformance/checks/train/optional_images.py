"""Claim `images`: what a sequence shows decides what is said of the tokens after it, and the whole model learns.

Knows: what scores and gradients must be, by transformers with the same images; how patches, grids and marks disagree.
Does not know: files, or how an engine runs a vision tower.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import Any

import torch

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.checks.train.zoo import says_the_same
from areal_conformance.oracles.train_compare import SCORES, columns_close, same, scored, slopes_close
from areal_conformance.oracles.train_images import KIND, OTHERS, SIZES, SeeingOracle, showing
from areal_conformance.outcome import expect, raises
from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES
from areal_core.contract.errors import BatchError, CapabilityError, ModelError
from areal_core.contract.train import OptimizerSpec
from areal_torch.testing.objectives import PolicyGradient

CLAIM = ("images",)
ATOL = 1e-4
_check = partial(check, level=Level.SINGLE, spec="train#images", requires=CLAIM, since=(1, 2))
_PROCESSORS = ("processor_config.json", "video_preprocessor_config.json")
_PLACEHOLDER = 2
"""The tiny model's image token, counted from its number of words."""


def oracle_of(bench: TrainBench, **arguments: Any) -> tuple[Any, SeeingOracle]:
    """Return a tiny model that sees and its oracle. Any: a path, and the arguments of `make_tiny_model`."""
    model = bench.model(kind=KIND, **arguments)
    return model, SeeingOracle(model)


@_check("train.images.scores", law=1)
def scores(bench: TrainBench) -> None:
    """Sequences with several images, one and none are scored as transformers does, each with its own."""
    for tied in (True, False):
        model, oracle = oracle_of(bench, tied=tied)
        batch = showing()
        with bench.engine(*CLAIM, model=model) as engine:
            scored(bench, "tied" if tied else "untied", engine, oracle, batch, atol=ATOL)


@_check("train.images.with_sequences", law=6)
def with_sequences(bench: TrainBench) -> None:
    """Images stay with their sequences through micro-batches and in any order."""
    model, oracle = oracle_of(bench)
    batch = showing(seed=1)
    orders = (list(range(len(SIZES))), [4, 2, 5, 0, 3, 1], [1, 4], [5])
    for budget in (26, 40, 16384):
        with bench.engine(*CLAIM, model=model, max_tokens_per_microbatch=budget) as engine:
            for rows in orders:
                what = f"of sequences {rows}, {budget} tokens a micro-batch"
                scored(bench, what, engine, oracle, batch.select(rows), atol=ATOL)


@_check("train.images.places", law=1)
def places(bench: TrainBench) -> None:
    """Height and width are not taken for one another, and a longer image moves the words after it."""
    model, oracle = oracle_of(bench)
    for sizes in ([[(1, 6)]], [[(6, 1)]], [[(2, 3)]], [[(3, 2)]]):
        with bench.engine(*CLAIM, model=model) as engine:
            scored(bench, f"after an image of {sizes}", engine, oracle, showing(sizes, seed=2), atol=ATOL)


@_check("train.images.said", law=1)
def said(bench: TrainBench) -> None:
    """A placeholder that the policy said stands for no image: it is scored as a word, and moves no image."""
    model, oracle = oracle_of(bench)
    for sizes in (SIZES, ((), ())):
        batch = showing(sizes, seed=3)
        ids = batch.tokens["input_ids"].clone()
        ids[batch.tokens["loss_mask"].nonzero().flatten()[::2]] = 64 + _PLACEHOLDER
        batch = batch.with_tokens(input_ids=ids)
        with bench.engine(*CLAIM, model=model) as engine:
            scored(bench, "of placeholders that were said", engine, oracle, batch, atol=ATOL)


@_check("train.images.gradient", law=6)
def gradient(bench: TrainBench) -> None:
    """A step follows the gradient of every parameter, those that see included, whatever the micro-batches."""
    model, oracle = oracle_of(bench)
    for sizes, budget in ((SIZES, 16384), (SIZES, 26), (((), ()), 16384)):
        slopes_close(bench, f"images of {sizes}", model, oracle, showing(sizes, seed=4), *CLAIM, budget)


@_check("train.images.state", law=4, requires=(*CLAIM, "checkpoint.exact"))
def state(bench: TrainBench) -> None:
    """A state goes on exactly although some of its steps were on text alone, which left a part of the model alone."""
    model, path = bench.model(kind=KIND), bench.folder / "state"
    words, steady = ((), ()), OptimizerSpec(lr=1e-2, weight_decay=0.1)
    ends = []
    for resumed in (False, True):
        with bench.engine(*CLAIM, model=model, optimizer=steady, seed=int(resumed)) as engine:
            if resumed:
                engine.load_state(path)
            else:
                for number, sizes in enumerate((SIZES, words)):
                    engine.train_step(showing(sizes, seed=number), PolicyGradient())
                engine.save_state(path)
            norms = [engine.train_step(showing(sizes, seed=7), PolicyGradient()).grad_norm for sizes in (SIZES, words)]
            ends.append((norms, bench.sent(engine)))
    expect(ends[0][0] == ends[1][0], f"gradient norms after resuming are {ends[1][0]}, without it {ends[0][0]}")
    same("weights two steps after resuming, the state's last step on text alone", ends[1][1], ends[0][1])


@_check("train.images.kinds", law=1)
def kinds(bench: TrainBench) -> None:
    """Other kinds of models that see are scored and trained as transformers does it, or refused when one starts."""
    for kind in OTHERS:
        model, batch = bench.model(kind=kind), showing(seed=7)
        engine = bench.fresh(*CLAIM)
        try:
            engine.start(bench.spec(*CLAIM, model=model), bench.rank_context())
            got = engine.forward(batch, SCORES)
        except (ModelError, CapabilityError) as error:
            expect(error.why or error.fix, f"a {kind} is refused without a reason: {error.what}")
            bench.notes.append(f"{kind} is refused")
            continue
        finally:
            engine.close()
        oracle = SeeingOracle(model)
        columns_close(bench, f"of a {kind}", got, oracle.columns(batch), atol=ATOL)
        slopes_close(bench, f"a {kind}", model, oracle, batch, *CLAIM, 26)


@_check("train.images.kept", law=1)
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


@_check("train.images.folder", law=2)
def folder(bench: TrainBench) -> None:
    """A folder written from a model that sees is one: every tensor of the start, its processor, its configuration."""
    model, path = bench.folder / "model", bench.folder / "written"
    shutil.copytree(bench.model(kind=KIND), model)
    for name in _PROCESSORS:  # which of them a folder has depends on its age
        (model / name).write_text(json.dumps({"processor_class": "Qwen2_5_VLProcessor"}))
    with bench.engine(*CLAIM, model=model) as engine:
        engine.save_weights(path)
    base, written = read_folder(model), read_folder(path)
    expect(set(base) == set(written), f"other tensors are written: {sorted(set(base) ^ set(written))[:4]}")
    odd = [name for name, tensor in base.items() if not torch.equal(tensor, written[name])]
    expect(not odd, f"tensors are written otherwise than they were read: {odd[:4]}")
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            expect((path / file.name).is_file(), f"{file.name} is missing from the folder written")
    says_the_same(path, model, KIND)


def _unfit(batch: Batch) -> dict[str, Batch]:
    """Return batches by what is wrong with their images."""
    flat = batch.flat()
    pixels, grid, marks = flat[f"media/{PIXEL_VALUES}"], flat[f"media/{IMAGE_GRID}"], flat[f"tokens/{IMAGE_TOKENS}"]
    once, twice, late = grid.clone(), grid.clone(), marks.clone()
    once[0, 0], twice[-1] = 2, torch.tensor([1, grid[-1, 1] * 2, grid[-1, 2]])
    late[marks.nonzero()[-1, 0]] = False
    broken = {
        "patches of too few numbers": {f"media/{PIXEL_VALUES}": pixels[:, :-1].contiguous()},
        "patches of whole numbers": {f"media/{PIXEL_VALUES}": pixels.long()},
        "an image of two moments": {f"media/{IMAGE_GRID}": once},
        "a grid twice as high as its patches": {f"media/{IMAGE_GRID}": twice},
        "grids with two sides": {f"media/{IMAGE_GRID}": grid[:, 1:].contiguous()},
        "no token for an image": {f"tokens/{IMAGE_TOKENS}": torch.zeros_like(marks)},
        "a token too few for the last image": {f"tokens/{IMAGE_TOKENS}": late},
        "marks that are numbers": {f"tokens/{IMAGE_TOKENS}": marks.long()},
        "patches of the sequence after": {f"counts/{PIXEL_VALUES}": flat[f"counts/{PIXEL_VALUES}"].roll(1)},
        "images of the sequence after": {f"counts/{IMAGE_GRID}": flat[f"counts/{IMAGE_GRID}"].roll(1)},
    }
    found = {what: Batch.from_flat({**flat, **columns}) for what, columns in broken.items()}
    without = {name: column for name, column in flat.items() if not name.startswith(("media/", "counts/"))}
    found["tokens of images that are not there"] = Batch.from_flat(without)
    unmarked = {name: column for name, column in flat.items() if name != f"tokens/{IMAGE_TOKENS}"}
    found["images and no marks"] = Batch.from_flat(unmarked)
    return found


@_check("train.images.refused", law=8)
def refused(bench: TrainBench) -> None:
    """Patches, grids and marks that disagree are a BatchError, and change nothing."""
    model, _ = oracle_of(bench)
    batch = showing(SIZES, seed=6)
    with bench.engine(*CLAIM, model=model) as engine:
        before = bench.sent(engine)
        for what, unfit in _unfit(batch).items():
            raises(BatchError, f"forward with {what}", partial(engine.forward, unfit, SCORES))
            raises(BatchError, f"train_step with {what}", partial(engine.train_step, unfit, PolicyGradient()))
        same("weights after refused images", bench.sent(engine), before)
        expect(engine.train_step(batch, PolicyGradient()).stepped, "the step after refused images was skipped")
