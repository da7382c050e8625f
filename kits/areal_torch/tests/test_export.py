"""A manifest names tensors as the model's folder does, those that are one among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from areal_core.contract.train import Head
from areal_torch import hf
from areal_torch.export import FolderWeights
from areal_torch.testing.models import SEEING, make_tiny_model


@pytest.mark.parametrize("kind", ["qwen3", *SEEING])
def test_what_is_tied_is_named_as_in_the_folder(tmp_path: Path, kind: str) -> None:
    """Transformers has other names in memory for models that see; what carries another is among those sent."""
    folder = make_tiny_model(tmp_path / kind, kind=kind)
    model = hf.load_model(str(folder), hf.load_config(str(folder), Head.CAUSAL_LM, images=True), Head.CAUSAL_LM)
    weights = FolderWeights(model, lambda tensor: tensor)

    assert list(weights.tied) == ["lm_head.weight"]
    assert set(weights.tied.values()) < set(weights.shapes()) == set(load_file(folder / "model.safetensors"))
