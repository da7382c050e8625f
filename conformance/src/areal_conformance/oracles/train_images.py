"""What a model that sees computes of sequences with images: transformers in float64, one sequence at a time.

Knows: how transformers is told which tokens stand for images.
Does not know: engines, packing, micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_conformance.oracles.train import Oracle
from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES
from areal_torch.hf import folder_tensors
from areal_torch.testing.batches import make_episode
from areal_torch.testing.images import make_seeing_trajectory
from areal_torch.testing.models import SEEING, WITH_IMAGES
from areal_torch.testing.serving import model_of

KIND = WITH_IMAGES
OTHERS = tuple(kind for kind in SEEING if kind != KIND)
"""Kinds that an engine may refuse, and if it takes them computes right."""
DEEPER = "qwen3_vl"
"""The one whose tower adds features behind the first layers too."""
Sizes = Sequence[Sequence[tuple[int, int]]]
SIZES: Sizes = (((2, 3), (1, 1)), (), ((1, 2),), ((2, 2),), (), ((1, 3), (3, 1), (1, 1)))
"""Height and width in tokens of the images of each sequence."""


def showing(sizes: Sizes = SIZES, seed: int = 0) -> Batch:
    """Return sequences that show images of these sizes, with `advantages` and `returns`."""
    rows = [make_seeing_trajectory(each, 2 + number, seed=97 * seed + number) for number, each in enumerate(sizes)]
    batch = Batch.pack([make_episode(row, group=f"g{number}") for number, row in enumerate(rows)])
    generator = torch.Generator().manual_seed(seed)
    return batch.with_tokens(
        advantages=torch.randn(batch.num_tokens, generator=generator),
        returns=torch.randn(batch.num_tokens, generator=generator),
    )


class SeeingOracle(Oracle):
    """A folder of a model that sees."""

    def opened(self, folder: Path) -> Any:
        """Open it as the kind of model it is. Any: transformers is not typed."""
        return model_of(folder, torch.float64, attn_implementation="eager")

    def stored(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As transformers saves such a model."""
        parts = [folder_tensors(self.model, name, tensor) for name, tensor in named.items()]
        return {stored: tensor for part in parts for stored, tensor in part.items()}

    def logits(self, one: Batch, ids: Tensor) -> Tensor:
        """Return logits [L, V] of one sequence. A placeholder that stands for no image is embedded as a word is."""
        marks = one.tokens[IMAGE_TOKENS] if IMAGE_TOKENS in one.tokens else torch.zeros_like(ids, dtype=torch.bool)
        base, deeper = self.model.model, dict[str, Any]()
        embeds, kinds = base.get_input_embeddings()(ids), marks.int()[None]
        places = torch.arange(len(ids)).expand(3, 1, -1)
        shown: Mapping[str, Tensor] = {name: media.rows for name, media in one.media.items()}
        if bool(marks.any()):
            seen = base.get_image_features(shown[PIXEL_VALUES].double(), shown[IMAGE_GRID], return_dict=True)
            embeds = embeds.masked_scatter(marks[:, None], torch.cat(tuple(seen.pooler_output)))
            places, _ = base.get_rope_index(ids[None], kinds, image_grid_thw=shown[IMAGE_GRID])
            if (stacks := getattr(seen, "deepstack_features", None)) is not None:  # added behind the first layers too
                added = [torch.cat(tuple(stack)) for stack in stacks]
                deeper = {"visual_pos_masks": marks[None], "deepstack_visual_embeds": added}
        hidden = base.language_model(inputs_embeds=embeds[None], position_ids=places, **deeper).last_hidden_state
        logits: Tensor = self.model.lm_head(hidden)[0]
        return logits
