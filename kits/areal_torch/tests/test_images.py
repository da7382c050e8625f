"""Models that see, against transformers' own forward pass, one sequence at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES
from areal_core.contract.errors import ArealError, BatchError, CapabilityError, ModelError
from areal_core.contract.train import Head, Output
from areal_torch import hf
from areal_torch.images import Vision, check_images
from areal_torch.model import PackedModel
from areal_torch.testing.batches import make_episode
from areal_torch.testing.images import make_seeing_trajectory
from areal_torch.testing.models import SEEING, WITH_IMAGES, make_tiny_model
from areal_torch.testing.serving import model_of

SIZES: tuple[tuple[tuple[int, int], ...], ...] = (((2, 3), (1, 1)), (), ((1, 2),), ())


@pytest.fixture(scope="module", params=SEEING)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of each kind that is understood."""
    return make_tiny_model(tmp_path_factory.mktemp("seeing") / request.param, kind=request.param)


def packed_model(folder: Path) -> PackedModel:
    """Load a folder as the engines do."""
    config = hf.load_config(str(folder), Head.CAUSAL_LM, images=True)
    return PackedModel(hf.load_model(str(folder), config, Head.CAUSAL_LM).train(), Head.CAUSAL_LM)


def batch_of(sizes: tuple[tuple[tuple[int, int], ...], ...] = SIZES) -> Batch:
    """Pack sequences that show images of these sizes."""
    rows = [make_seeing_trajectory(each, 3 + number, seed=number) for number, each in enumerate(sizes)]
    return Batch.pack([make_episode(row, group=f"g{number}") for number, row in enumerate(rows)])


def plain_logprobs(model: Any, batch: Batch) -> Tensor:
    """Return log-probs of trained tokens with transformers alone, float32 [T]. Any: transformers' model."""
    columns = []
    for row in range(batch.num_sequences):
        one = batch.select([row])
        ids = one.tokens["input_ids"]
        shown = {}
        if one.media and len(one.media[IMAGE_GRID].rows):
            shown = {name: media.rows for name, media in one.media.items()}
            shown["mm_token_type_ids"] = one.tokens[IMAGE_TOKENS].int()[None]
        log_p = model(input_ids=ids[None], **shown).logits[0, :-1].log_softmax(-1)
        own = log_p.gather(1, ids[1:, None])[:, 0]
        columns.append(torch.cat([own.new_zeros(1), own]) * one.tokens["loss_mask"])
    return torch.cat(columns)


def test_scores_and_every_gradient_are_those_of_transformers(folder: Path) -> None:
    """Packed sequences with two images, one and none: the vision tower's parameters too."""
    batch, packed, plain = batch_of(), packed_model(folder), model_of(folder, torch.float32)
    column = packed(batch, frozenset({Output.LOGPROBS}))[Output.LOGPROBS]
    expected = plain_logprobs(plain, batch)
    torch.testing.assert_close(column, expected, rtol=1e-4, atol=1e-5)

    column.sum().backward()
    expected.sum().backward()
    gradients = {name: each.grad for name, each in packed.hf.named_parameters()}
    assert any("visual" in name for name in gradients)
    for name, parameter in plain.named_parameters():
        gap, scale = (gradients[name] - parameter.grad).abs().max(), parameter.grad.abs().max()
        assert gap <= 1e-4 * scale, f"{name} differs by {gap} of {scale}"


def test_what_is_shown_matters(folder: Path) -> None:
    """So the comparison above would fail if images were dropped, or given to another sequence."""
    batch, packed = batch_of(), packed_model(folder)
    other = Batch.from_flat({**batch.flat(), f"media/{PIXEL_VALUES}": batch.media[PIXEL_VALUES].rows.flip(0)})

    with torch.no_grad():
        first, second = (packed(each, frozenset({Output.LOGPROBS}))[Output.LOGPROBS] for each in (batch, other))
    changed = ((first - second).abs() > 1e-3)[batch.tokens["loss_mask"]]
    assert bool(changed.any())


def test_without_images_every_parameter_still_has_a_gradient(folder: Path) -> None:
    """Ranks that shard the vision tower reduce the same tensors, whatever each was shown; all else is unchanged."""
    packed, plain = packed_model(folder), model_of(folder, torch.float32)
    batch = batch_of(((), ()))
    column = packed(batch, frozenset({Output.LOGPROBS}))[Output.LOGPROBS]
    column.sum().backward()

    torch.testing.assert_close(column, plain_logprobs(plain, batch), rtol=1e-4, atol=1e-5)
    for name, parameter in packed.hf.named_parameters():
        assert parameter.grad is not None, name
        assert ("visual" in name) == (not bool(parameter.grad.any())), name


def test_a_placeholder_the_policy_said_is_a_word(folder: Path) -> None:
    """It is embedded like any other token, and no image is moved by it."""
    batch, packed = batch_of(), packed_model(folder)
    ids = batch.tokens["input_ids"].clone()
    ids[-2] = 66
    said = batch.with_tokens(input_ids=ids)

    with torch.no_grad():
        first, second = (packed(each, frozenset({Output.LOGPROBS}))[Output.LOGPROBS] for each in (batch, said))
    torch.testing.assert_close(first[:-2], second[:-2])
    assert not torch.allclose(first[-2:], second[-2:])


def broken(**columns: Tensor) -> Batch:
    """Return a batch with other columns, by the names of `Batch.flat`."""
    flat = batch_of().flat()
    return Batch.from_flat({**flat, **{name.replace("__", "/"): column for name, column in columns.items()}})


GOOD = batch_of()
GRID = GOOD.media[IMAGE_GRID]


@pytest.mark.parametrize(
    ("batch", "kind", "says"),
    [
        (broken(media__pixel_values=GOOD.media[PIXEL_VALUES].rows[:, :-1]), BatchError, "float32 [patches, 1176]"),
        (broken(media__pixel_values=GOOD.media[PIXEL_VALUES].rows.double()), BatchError, "torch.float64"),
        (broken(media__image_grid_thw=GRID.rows.flip(1)), BatchError, "one picture"),
        (broken(media__image_grid_thw=GRID.rows.int()), BatchError, "torch.int32"),
        (
            broken(media__image_grid_thw=GRID.rows * torch.tensor([1, 2, 1])),
            BatchError,
            "sequence 0 has runs of [6, 1]",
        ),
        (broken(tokens__image_tokens=~GOOD.tokens[IMAGE_TOKENS]), BatchError, "stands for one image"),
        (broken(tokens__image_tokens=GOOD.tokens[IMAGE_TOKENS].int()), BatchError, "no bool column"),
        (broken(counts__pixel_values=GOOD.media[PIXEL_VALUES].counts.flip(0)), BatchError, "sequence 0 has 0 patches"),
    ],
)
def test_images_that_cannot_be_are_refused(batch: Batch, kind: type[ArealError], says: str) -> None:
    """Before a pass, with what does not fit."""
    with pytest.raises(kind, match="(?s)" + says.replace("[", r"\[").replace("]", r"\]")):
        check_images(batch, Vision(width=1176, side=2))


def test_a_model_of_text_refuses_images() -> None:
    """An engine that does not claim them would train on placeholders."""
    with pytest.raises(CapabilityError, match="sees no images"):
        check_images(batch_of(), None)


def test_who_does_not_see_refuses_the_folder(tmp_path: Path) -> None:
    """Engines that do not claim images, and critics, say so before anything is loaded."""
    folder = str(make_tiny_model(tmp_path / "model", kind=WITH_IMAGES))
    for head, images in ((Head.CAUSAL_LM, False), (Head.VALUE, True)):
        with pytest.raises(ModelError, match="no causal language model"):
            hf.load_config(folder, head, images=images)
