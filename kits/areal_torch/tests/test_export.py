"""A manifest names tensors as the model's folder does, those that are one among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", *SEEING])
def test_every_send_has_the_form_of_the_folder(tmp_path: Path, kind: str) -> None:
    """What transformers is asked once is asked of names alone: values are those of now, fused experts are apart."""
    folder = make_tiny_model(tmp_path / kind, kind=kind)
    model = hf.load_model(str(folder), hf.load_config(str(folder), Head.CAUSAL_LM, images=True), Head.CAUSAL_LM)
    weights, stored = FolderWeights(model, lambda tensor: tensor.detach()), load_file(folder / "model.safetensors")

    for factor in (1.0, 2.0, 4.0):
        sent = {name: tensor for part in weights.wholes(torch.float32) for name, tensor in part.items()}
        assert sent.keys() == stored.keys() == weights.shapes().keys()
        for name, tensor in sent.items():
            assert torch.equal(tensor, stored[name].float() * factor), name
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2.0)
