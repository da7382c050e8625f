"""An adapter is looked at before an engine is asked to load it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_core.contract.errors import ModelError
from areal_serving.adapter_folder import check_adapter

LAYER = "model.layers.0.self_attn.q_proj"
SHAPES = {f"{LAYER}.weight": (8, 6)}


def folder(path: Path, **changed: tuple[int, ...] | None) -> Path:
    """Write an adapter of rank 2 for one layer; `changed` gives A or B another shape, or leaves it out."""
    shapes = {"A": (2, 6), "B": (8, 2), **changed}
    name = f"base_model.model.{LAYER}.lora_{{}}.weight"
    tensors = {name.format(end): torch.zeros(shape) for end, shape in shapes.items() if shape is not None}
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"r": 2}))
    return path


def test_an_adapter_of_the_model_fits(tmp_path: Path) -> None:
    """A [rank, in] and B [out, rank]."""
    check_adapter(folder(tmp_path), SHAPES)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"A": (2, 12)}, "make no update"),
        ({"B": (9, 2)}, "make no update"),
        ({"B": (8, 3)}, "make no update"),
        ({"A": None}, "no lora_A"),
        ({"B": None}, "no lora_B"),
    ],
)
def test_an_adapter_of_another_shape_is_refused(
    tmp_path: Path, changed: dict[str, tuple[int, ...] | None], told: str
) -> None:
    """Or one of which a half is missing."""
    with pytest.raises(ModelError) as caught:
        check_adapter(folder(tmp_path, **changed), SHAPES)
    assert told in caught.value.why
    assert LAYER in caught.value.why


def test_a_layer_the_model_lacks_is_refused(tmp_path: Path) -> None:
    """Engines leave it out and say nothing."""
    with pytest.raises(ModelError) as caught:
        check_adapter(folder(tmp_path), {"model.layers.1.self_attn.q_proj.weight": (8, 6)})
    assert "no such layer" in caught.value.why


def test_more_than_a_and_b_is_refused(tmp_path: Path) -> None:
    """Biases of B, or layers saved whole: they would be left out."""
    adapter = folder(tmp_path)
    file, name = adapter / "adapter_model.safetensors", f"base_model.model.{LAYER}.lora_B.bias"
    save_file({**load_file(file), name: torch.ones(8)}, file)

    with pytest.raises(ModelError) as caught:
        check_adapter(adapter, SHAPES)
    assert name in caught.value.why


def test_another_rank_than_the_folder_says_is_refused(tmp_path: Path) -> None:
    """Its scale would be another."""
    adapter = folder(tmp_path)
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 8}))

    with pytest.raises(ModelError) as caught:
        check_adapter(adapter, SHAPES)
    assert "its rank is 2" in caught.value.why


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_that_is_no_adapter_is_refused(tmp_path: Path, missing: str) -> None:
    """Also one without weights."""
    (folder(tmp_path) / missing).unlink()

    with pytest.raises(ModelError):
        check_adapter(tmp_path, SHAPES)
