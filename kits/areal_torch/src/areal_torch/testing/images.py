"""Sequences with images for the tiny model that sees: drawn patches, as its processor would make them of a file.

Knows: where the tiny model's image tokens are among its ids, and how large its patches are.
Does not know: files, or who trains on the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES, Trajectory
from areal_torch.testing.batches import make_trajectory
from areal_torch.testing.models import PATCH_VALUES, SIDE_IN_PATCHES

Size = tuple[int, int]
"""Height and width of an image, in tokens."""


def make_seeing_trajectory(
    sizes: Sequence[Size] = ((1, 1),),
    num_generated: int = 3,
    *,
    vocab_size: int = 64,
    reward: float = 1.0,
    seed: int = 0,
) -> Trajectory:
    """Return a prompt that shows images, one after another with text around each, and what the policy said to it.

    Ids are those of `make_tiny_model(kind=WITH_IMAGES, vocab_size=...)`. Without sizes it is a prompt of text, which
    says of every token, too, that it is of no image.
    """
    generator = torch.Generator().manual_seed(seed)

    def words(count: int) -> list[int]:
        return torch.randint(3, vocab_size, (count,), generator=generator).tolist()

    ids, marks = words(2), [False] * 2
    for height, width in sizes:
        ids += [vocab_size, *[vocab_size + 2] * (height * width), vocab_size + 1, *words(1)]
        marks += [False, *[True] * (height * width), False, False]
    plain = make_trajectory(len(ids), num_generated, reward=reward, seed=seed)
    marks += [False] * num_generated
    return Trajectory(
        input_ids=torch.tensor([*ids, *words(num_generated)]),
        loss_mask=plain.loss_mask,
        logprobs=plain.logprobs,
        versions=plain.versions,
        reward=reward,
        stop_reason=plain.stop_reason,
        token_extras={IMAGE_TOKENS: torch.tensor(marks)},
        media=_media(sizes, generator) if sizes else {},
    )


def _media(sizes: Sequence[Size], generator: torch.Generator) -> dict[str, Tensor]:
    side = SIDE_IN_PATCHES
    grid = torch.tensor([[1, height * side, width * side] for height, width in sizes])
    return {
        PIXEL_VALUES: torch.randn(int(grid.prod(-1).sum()), PATCH_VALUES, generator=generator),
        IMAGE_GRID: grid,
    }
