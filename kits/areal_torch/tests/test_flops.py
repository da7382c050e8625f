"""The most a role could train is known for the models and devices it is known for, and is never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract.train import Head, LoraSpec, OptimizerSpec, RankContext, TrainSpec
from areal_torch import flops, hf
from areal_torch.flops import PEAK_TOKENS_PER_S, multiplied_parameters, peak_details
from areal_torch.shape import read_shape
from areal_torch.testing.models import make_tiny_model

CPU = torch.device("cpu")


def details(model: Path, **changes: Any) -> dict[str, str]:
    fields: dict[str, Any] = {"role": "actor", "dtype": "bfloat16", "optimizer": OptimizerSpec(lr=1e-3), **changes}
    spec = TrainSpec(model_path=str(model), **fields)
    rank = RankContext(rank=1, world_size=4, local_rank=0, device="cuda", init_method="unused")
    return peak_details(spec, rank, hf.load_config(str(model), Head.CAUSAL_LM), CPU)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_token_is_multiplied_with_the_weights_of_every_linear_layer(tmp_path: Path, kind: str, tied: bool) -> None:
    """As transformers builds them, the output layer among them; looking up an embedding is no product."""
    make_tiny_model(tmp_path, kind=kind, tied=tied, head_dim=32)
    config = hf.load_config(str(tmp_path), Head.CAUSAL_LM)
    model = hf.load_model(str(tmp_path), config, Head.CAUSAL_LM)
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]

    counted = multiplied_parameters(read_shape(str(tmp_path), config, Head.CAUSAL_LM, engine="test"))

    assert counted == sum(module.weight.numel() for module in linear)


def test_of_experts_only_those_count_that_a_token_is_sent_to(tmp_path: Path) -> None:
    """Two of four, and the router that chose them."""
    make_tiny_model(tmp_path, kind="qwen3_moe")
    shape = read_shape(str(tmp_path), hf.load_config(str(tmp_path), Head.CAUSAL_LM), Head.CAUSAL_LM, engine="test")

    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    mixture = 2 * 3 * shape.hidden * shape.expert_intermediate + 4 * shape.hidden
    assert (shape.experts_per_token, shape.experts, len(shape.mixtures)) == (2, 4, shape.layers)
    assert multiplied_parameters(shape) == shape.layers * (attention + mixture) + shape.hidden * shape.vocabulary


def test_the_peak_is_that_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four H200, in tokens a second: six operations per parameter."""
    make_tiny_model(tmp_path)
    monkeypatch.setattr(flops, "_name", lambda device: "NVIDIA H200")
    shape = read_shape(str(tmp_path), hf.load_config(str(tmp_path), Head.CAUSAL_LM), Head.CAUSAL_LM, engine="test")

    found = details(tmp_path)

    assert float(found[PEAK_TOKENS_PER_S]) == pytest.approx(4 * 989.5e12 / (6 * multiplied_parameters(shape)))
    assert details(tmp_path, lora=LoraSpec(rank=2, alpha=2.0, targets=("q_proj",))) == {}, "its backward pass is less"
    assert details(tmp_path, optimizer=None) == {} and details(tmp_path, dtype="float32") == {}


def test_without_a_known_device_nothing_is_said(tmp_path: Path) -> None:
    """The CPU has no name, and no peak."""
    make_tiny_model(tmp_path)

    assert details(tmp_path) == {}
