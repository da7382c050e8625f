"""Claim `images`: media that cannot be what the sequences showed are refused, in scoring and in training.

Knows: the ways patches, grids and marks can disagree.
Does not know: what right images give (`optional_images`).
"""

from __future__ import annotations

from functools import partial

import torch

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.optional_images import CLAIM, SCORES, SPEC, oracle_of
from areal_conformance.oracles.train_compare import raises, same
from areal_conformance.oracles.train_images import SIZES, showing
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES
from areal_core.contract.errors import BatchError
from areal_torch.testing.objectives import PolicyGradient


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


@check("train.images.refused", level=Level.SINGLE, law=8, spec=SPEC, requires=CLAIM, since=(1, 2))
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
