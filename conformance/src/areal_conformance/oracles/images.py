"""The truth about prompts with images: transformers' own model and image processor, float32, eager attention, no batch.

Knows: how one placeholder becomes as many tokens as an image takes.
Does not know: engines, or tolerances.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from areal_torch.testing.serving import model_of


class ImageOracle:
    """A model folder that takes images, loaded once. Any: transformers is not typed."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoImageProcessor  # brings every quantizer along, seconds that only images are worth

        self._model: Any = model_of(folder, torch.float32, attn_implementation="eager").eval()
        self._processor: Any = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
        self._placeholder: int = self._model.config.image_token_id

    @torch.no_grad()
    def logits(self, ids: Sequence[int], images: Sequence[bytes], count: int) -> Tensor:
        """Return float32 logits [count, V] that the last `count` of `ids`, one placeholder per image, were drawn from.

        Images stand in the prompt, so that the last tokens are where they would be without any.
        """
        given: dict[str, Any] = {}
        if images:
            opened = [Image.open(io.BytesIO(image)).convert("RGB") for image in images]
            given = dict(self._processor(images=opened, return_tensors="pt"))
        merged = self._processor.merge_size**2
        sizes = iter(int(grid.prod()) // merged for grid in given.get("image_grid_thw", ()))
        whole = [token for token in ids for _ in range(next(sizes) if token == self._placeholder else 1)]
        batch = torch.tensor([whole])
        kinds = (batch == self._placeholder).long()
        logits: Tensor = self._model(input_ids=batch, mm_token_type_ids=kinds, use_cache=False, **given).logits
        return logits[0, -count - 1 : -1].float()
