"""Adapters of some layers of a fused group: made whole with updates of zero, the others handed on as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_sglang.adapter import completed

SHAPES = {
    f"model.layers.0.{name}.weight": shape
    for name, shape in {
        "self_attn.q_proj": (32, 16),
        "self_attn.k_proj": (8, 16),
        "self_attn.v_proj": (8, 16),
        "self_attn.o_proj": (16, 32),
        "mlp.gate_proj": (24, 16),
        "mlp.up_proj": (24, 16),
    }.items()
}


def adapter(folder: Path, *layers: str, rank: int = 2) -> Path:
    """Write an adapter of these layers, of ones."""
    folder.mkdir()
    tensors = {}
    for layer in layers:
        out, wide = SHAPES[f"model.layers.0.{layer}.weight"]
        tensors[f"base_model.model.model.layers.0.{layer}.lora_A.weight"] = torch.ones(rank, wide)
        tensors[f"base_model.model.model.layers.0.{layer}.lora_B.weight"] = torch.ones(out, rank)
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = [layer.rpartition(".")[2] for layer in layers]
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "target_modules": targets}))
    return folder


@pytest.mark.parametrize(
    ("layers", "added"),
    [
        (("self_attn.k_proj",), ("self_attn.q_proj", "self_attn.v_proj")),
        (("self_attn.q_proj", "self_attn.v_proj"), ("self_attn.k_proj",)),
        (("mlp.up_proj", "self_attn.o_proj"), ("mlp.gate_proj",)),
    ],
)
def test_a_missing_layer_of_a_fused_group_is_one_without_an_update(
    layers: tuple[str, ...], added: tuple[str, ...], tmp_path: Path
) -> None:
    """Its A and B are zero, of the shapes the model asks for; what was there is as it was."""
    whole = adapter(tmp_path / "a", *layers)
    given = load_file(whole / "adapter_model.safetensors")

    with completed(whole, SHAPES) as folder:
        tensors = load_file(folder / "adapter_model.safetensors")
        config = json.loads((folder / "adapter_config.json").read_text())

    assert all(torch.equal(tensors[name], tensor) for name, tensor in given.items())
    more = {name: tensor for name, tensor in tensors.items() if name not in given}
    assert not any(tensor.any() for tensor in more.values())
    for layer in added:
        name = f"base_model.model.model.layers.0.{layer}"
        assert tuple(more.pop(f"{name}.lora_A.weight").shape) == (2, 16)
        assert tuple(more.pop(f"{name}.lora_B.weight").shape) == (SHAPES[f"model.layers.0.{layer}.weight"][0], 2)
    assert not more
    assert {layer.rpartition(".")[2] for layer in (*layers, *added)} == set(config["target_modules"])
    assert not folder.exists()


def test_a_whole_adapter_is_handed_on_as_it_is(tmp_path: Path) -> None:
    """No copy is made of one that SGLang takes."""
    folder = adapter(tmp_path / "a", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")

    with completed(folder, SHAPES) as given:
        assert given == folder
