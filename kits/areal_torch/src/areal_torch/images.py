"""Images among packed tokens: a vision tower's features in the place of the tokens that stand for them.

Knows: transformers' models of the Qwen-VL families; what media of a batch must be like.
Does not know: files or processors (`areal_torch.prepare_images`), or how parameters are sharded.

Legend: T tokens the layers see, I images, P patches, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES
from areal_core.contract.errors import BatchError, CapabilityError, ModelError
from areal_torch.attention import Packing
from areal_torch.image_plan import KINDS


@frozen(kw_only=True)
class Vision:
    """What images of a model look like: values per patch, and patches per token in each direction."""

    width: int
    side: int

    @classmethod
    def of(cls, config: Any) -> Vision | None:  # Any: a transformers configuration
        """Read it from a configuration; None for a model of text alone.

        Raises:
            ModelError: the model takes images in another way.
        """
        vision = getattr(config, "vision_config", None)
        if vision is None:
            return None
        if config.model_type not in KINDS:
            raise ModelError(
                f"models of type {config.model_type!r} take images in a way that cannot be trained here",
                why=f"supported are {', '.join(KINDS)}",
                fix="choose one of these, or a text-only model",
            )
        channels = getattr(vision, "in_channels", None) or vision.in_chans
        return cls(
            width=int(channels * vision.temporal_patch_size * vision.patch_size**2), side=int(vision.spatial_merge_size)
        )

    def tokens(self, grid: Tensor) -> Tensor:
        """Return how many tokens stand for each image of a grid int64 [I, 3]; int64 [I]."""
        return grid.prod(-1) // self.side**2


def check_images(batch: Batch, vision: Vision | None) -> None:
    """Refuse images that this model cannot have been shown. Reads values: call it where the batch was made.

    Raises:
        CapabilityError: there are images, and the model is one of text alone, or the engine cannot train on them.
        BatchError: patches, grids and tokens do not agree.
    """
    if vision is None:
        if batch.media:
            raise CapabilityError(
                f"the batch holds {', '.join(batch.media)}, and this role's model sees no images",
                why="it has no vision tower, or its engine does not claim `images`",
                fix="train a vision-language model with a backend that claims it (`areal backends`)",
            )
        return
    if set(batch.media) not in ({PIXEL_VALUES, IMAGE_GRID}, set()):
        raise BatchError(
            f"the batch holds the media {', '.join(sorted(batch.media))}",
            why=f"this model takes {PIXEL_VALUES} and {IMAGE_GRID}, both or neither",
            fix="prepare episodes with areal_torch.prepare_images",
        )
    if not batch.media:
        if IMAGE_TOKENS in batch.tokens and bool(batch.tokens[IMAGE_TOKENS].any()):
            raise BatchError("tokens stand for images the batch does not hold", why=f"it has no {PIXEL_VALUES}")
        return
    pixels, grids = batch.media[PIXEL_VALUES].rows, batch.media[IMAGE_GRID].rows
    if pixels.dtype != torch.float32 or tuple(pixels.shape[1:]) != (vision.width,):
        raise BatchError(
            f"{PIXEL_VALUES} are {pixels.dtype} {list(pixels.shape)}",
            why=f"this model's patches are float32 [patches, {vision.width}]",
            fix="prepare images with the processor of the model that is trained",
        )
    if grids.dtype != torch.int64 or tuple(grids.shape[1:]) != (3,) or bool((grids < 1).any()):
        raise BatchError(f"{IMAGE_GRID} is {grids.dtype} {list(grids.shape)}", why="it must be positive int64 [I, 3]")
    if bool((grids[:, 0] != 1).any()) or bool((grids[:, 1:] % vision.side).any()):
        raise BatchError(
            f"{IMAGE_GRID} holds {grids.tolist()[:4]}",
            why=f"an image is one picture whose height and width are multiples of {vision.side} patches",
            fix="prepare images with the processor of the model that is trained",
        )
    _check_places(batch, vision)


def _check_places(batch: Batch, vision: Vision) -> None:
    if IMAGE_TOKENS not in batch.tokens or batch.tokens[IMAGE_TOKENS].dtype != torch.bool:
        raise BatchError(f"the batch holds images and no bool column {IMAGE_TOKENS!r}", why="it says where they stand")
    marks = torch.split(batch.tokens[IMAGE_TOKENS], batch.lengths.tolist())
    grids = torch.split(batch.media[IMAGE_GRID].rows, batch.media[IMAGE_GRID].counts.tolist())
    for number, (mark, grid) in enumerate(zip(marks, grids, strict=True)):
        found, wanted = _run_lengths(mark), vision.tokens(grid).tolist()
        if found != wanted:
            raise BatchError(
                f"sequence {number} has runs of {found} tokens for images that take {wanted}",
                why=f"each run in {IMAGE_TOKENS!r} stands for one image, in order",
                fix="prepare episodes with areal_torch.prepare_images",
            )
        patches = int(batch.media[PIXEL_VALUES].counts[number])
        if patches != int(grid.prod(-1).sum()):
            raise BatchError(
                f"sequence {number} has {patches} patches for grids {grid.tolist()}", why="their products must add up"
            )


def _run_lengths(mark: Tensor) -> list[int]:
    return [len(list(run)) for is_image, run in groupby(mark.tolist()) if is_image]


@frozen(eq=False)
class VisionTower:
    """The part of a model that sees: what its language model is given in place of token ids.

    Every pass runs the vision tower, on a grey square if there are no images: where it is sharded, ranks gather its
    weights together, and each of its parameters must have a place in every backward pass.
    """

    base: Any = field(repr=False)  # Any: transformers' model without its head
    vision: Vision

    def inputs(self, batch: Batch, packing: Packing) -> dict[str, Any]:
        """Return keywords of the language model's forward pass for the tokens this rank's layers see.

        inputs_embeds [1, T, D], position_ids int64 [3, 1, T], and for models that add features to several layers the
        places [1, T] and features [places, D] of each.
        """
        part = packing.part
        ids = packing.filled(batch.tokens["input_ids"])
        pixels, grid = self._images(batch)
        marks = self._marks(batch, packing)
        seen = self.base.get_image_features(pixels, grid, return_dict=True)
        embeds = self.base.get_input_embeddings()(ids[None])[0]
        features, deeper = torch.cat(tuple(seen.pooler_output)), getattr(seen, "deepstack_features", None)
        embeds = _placed(embeds, marks, features.to(embeds.dtype))
        inputs: dict[str, Any] = {
            "inputs_embeds": embeds[part][None],
            "position_ids": self._positions(batch, packing)[:, None, part],
        }
        if deeper is not None:
            before = int(marks[: part.start].sum())
            own = slice(before, before + int(marks[part].sum()))
            stacks = [torch.cat(tuple(layer)) for layer in deeper]
            if not _shows(batch):
                own = slice(0, 0)
                inputs["inputs_embeds"] = inputs["inputs_embeds"] + _nothing(stacks)
            inputs["visual_pos_masks"] = marks[part][None]
            inputs["deepstack_visual_embeds"] = [stack[own] for stack in stacks]
        return inputs

    def _images(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if _shows(batch):
            return batch.media[PIXEL_VALUES].rows, batch.media[IMAGE_GRID].rows
        side, device = self.vision.side, batch.device
        return torch.zeros(side**2, self.vision.width, device=device), torch.tensor([[1, side, side]], device=device)

    def _marks(self, batch: Batch, packing: Packing) -> Tensor:
        if not _shows(batch):
            return torch.zeros(len(packing.positions), dtype=torch.bool, device=batch.device)
        return packing.filled(batch.tokens[IMAGE_TOKENS])

    def _positions(self, batch: Batch, packing: Packing) -> Tensor:
        """Return positions in time, height and width, int64 [3, T]; those of text are alike in all three."""
        positions = packing.positions.expand(3, -1)
        if not _shows(batch):
            return positions
        positions, ends = positions.clone(), batch.cu_seqlens.tolist()
        grids = torch.split(batch.media[IMAGE_GRID].rows, batch.media[IMAGE_GRID].counts.tolist())
        for start, end, grid in zip(ends, ends[1:], grids, strict=False):
            if len(grid):
                ids, marks = (batch.tokens[name][None, start:end] for name in ("input_ids", IMAGE_TOKENS))
                found, _ = self.base.get_rope_index(ids, marks.int(), image_grid_thw=grid)
                positions[:, start:end] = found[:, 0]
        return positions


def _placed(embeds: Tensor, marks: Tensor, features: Tensor) -> Tensor:
    """Return embeddings [T, D] with features [marked, D] in their places; without marks, with nothing changed."""
    if not bool(marks.any()):
        return embeds + _nothing([features])
    return embeds.masked_scatter(marks[:, None], features)


def _shows(batch: Batch) -> bool:
    return PIXEL_VALUES in batch.media and len(batch.media[PIXEL_VALUES].rows) > 0


def _nothing(features: list[Tensor]) -> Tensor:
    return torch.stack([feature.sum() for feature in features]).sum() * 0.0


def seen_inputs(tower: VisionTower | None, batch: Batch, packing: Packing) -> Mapping[str, Any]:
    """Return what a model's layers are given for a batch: token ids, or what the vision tower makes of them."""
    if tower is not None:
        return tower.inputs(batch, packing)
    ids, part = packing.filled(batch.tokens["input_ids"]), packing.part
    return {"input_ids": ids[part][None], "position_ids": packing.positions[part][None]}
