"""The table of names, against folders as transformers writes them. No Megatron is needed."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from areal_core.contract.train import Head
from areal_megatron.fitting import shape_of
from areal_megatron.names import native_names, parameters_of
from areal_torch import hf
from areal_torch.testing.models import make_tiny_model

KINDS = ("qwen3", "qwen2", "llama", "qwen3_moe")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("names")
    return {kind: make_tiny_model(path / kind, kind=kind, vocab_size=65, tied=kind == "qwen3") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_a_folder_has_one_place(kind: str, folders: dict[str, Path]) -> None:
    """Names and shapes of the table are those of the folder: no more, no less, none twice."""
    path = str(folders[kind])
    parameters = parameters_of(shape_of(path, hf.load_config(path, Head.CAUSAL_LM), Head.CAUSAL_LM))
    named = [(part.name, part.shape) for each in parameters for part in each.parts]

    assert len(dict(named)) == len(named)
    assert dict(named) == {
        name: tuple(each.shape) for name, each in load_file(folders[kind] / "model.safetensors").items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_merged_and_split_again_is_the_same(kind: str, folders: dict[str, Path]) -> None:
    """What loading puts together, sending takes apart: bit for bit, and nothing of a parameter is left unwritten."""
    path = str(folders[kind])
    tensors = load_file(folders[kind] / "model.safetensors")
    for parameter in parameters_of(shape_of(path, hf.load_config(path, Head.CAUSAL_LM), Head.CAUSAL_LM)):
        whole = torch.full(parameter.shape, float("nan"))
        for part in parameter.parts:
            place = parameter.pick(whole, part)
            place.copy_(tensors[part.name].reshape(place.shape))

        assert not whole.isnan().any(), parameter.name
        assert sum(prod(part.shape) for part in parameter.parts) == whole.numel()
        for name, tensor in parameter.split(whole).items():
            assert torch.equal(tensor, tensors[name]), name


def test_a_group_of_heads_is_queries_then_key_then_value(folders: dict[str, Path]) -> None:
    """Megatron's order within `linear_qkv`: two key heads, of each the two queries that share it."""
    path = str(folders["llama"])
    parameters = parameters_of(shape_of(path, hf.load_config(path, Head.CAUSAL_LM), Head.CAUSAL_LM))
    parameter = next(each for each in parameters if each.name.endswith("0.self_attention.linear_qkv.weight"))
    rows = torch.arange(prod(parameter.shape)).reshape(-1, 64)[:, 0] // 64
    split = parameter.split(torch.arange(len(rows)).repeat_interleave(64).view(parameter.shape))

    firsts = {name.split(".")[-2]: tensor[::16, 0].tolist() for name, tensor in split.items()}
    assert firsts == {"q_proj": [0, 16, 64, 80], "k_proj": [32, 96], "v_proj": [48, 112]}


def test_a_value_head_stands_in_place_of_the_other(folders: dict[str, Path]) -> None:
    """A critic of a tied model has a score and no second name for the embedding."""
    path = str(folders["qwen3"])
    names = {
        part.name
        for each in parameters_of(shape_of(path, hf.load_config(path, Head.VALUE), Head.VALUE))
        for part in each.parts
    }

    assert {"score.weight", "score.bias", "model.embed_tokens.weight"} <= names
    assert "lm_head.weight" not in names


@pytest.mark.parametrize(
    ("built", "known"),
    [
        ("decoder.layers.1.mlp.linear_fc1.weight", "decoder.layers.5.mlp.linear_fc1.weight"),
        ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "decoder.layers.4.pre_mlp_layernorm.weight"),
        ("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", "decoder.layers.4.input_layernorm.weight"),
        (
            "decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight",
            "decoder.layers.4.mlp.experts.3.linear_fc2.weight",
        ),
        ("decoder.layers.0.mlp.experts.linear_fc2.weight1", "decoder.layers.4.mlp.experts.3.linear_fc2.weight"),
        ("embedding.word_embeddings.weight", "embedding.word_embeddings.weight"),
    ],
)
def test_a_stage_is_named_as_the_whole_model(built: str, known: str) -> None:
    """Of whichever layers it is built: norms inside linear layers and grouped experts are Transformer Engine's."""
    ((name, _),) = native_names(iter([(built, nn.Parameter(torch.empty(0)))]), first_layer=4, first_expert=2)

    assert name == known
