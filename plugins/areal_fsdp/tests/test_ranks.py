"""The FSDP engine on one, two and four real ranks, against a bare PyTorch loop over unpacked sequences."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GraniteConfig, LlamaConfig

from areal_torch.testing.axes.claims import HeldToAPlainLoop, cases, make_models, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # two and four real ranks, many layouts in one start


def write_model(path: Path, config: Any) -> None:
    """Write a tiny model of a family `make_tiny_model` lacks, norms and biases away from neutral, beside a qwen3.

    Any: a config of transformers.
    """
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    for file in (path.parent / "qwen3").glob("tokenizer*"):
        shutil.copy(file, path)


class TestFSDP(HeldToAPlainLoop):
    """Replicas, compiled layers and experts among the cases; 66 tokens are halved into 33, 65 into unlike halves."""

    script = Path(__file__).with_name("ranks.py")
    trained = ("qwen3", "qwen2", "moe", "odd", "biased", "granite")
    order = (2, 4, 1)
    refusals = {  # noqa: RUF012
        "plan": ("ModelError", "GPT2LMHeadModel cannot be sharded over tensor ranks"),
        "context_heads": ("LayoutError", "c2 does not divide 3 attention heads"),
        "heads": ("LayoutError", "t2 does not divide 3 attention heads"),
        "replicas": ("LayoutError", "3 replicas do not divide d2"),
        "pipeline": ("LayoutError", "no pipeline parallelism"),
        "compiled": ("CapabilityError", "layers are not compiled over tensor ranks"),
    }

    @classmethod
    def make_models(cls, path: Path) -> None:
        """Add families whose plans transformers has, and one that has none."""
        make_models(path)
        sizes = {"vocab_size": 66, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 40, "eos_token_id": 1}
        write_model(path / "biased", LlamaConfig(**sizes, **heads, attention_bias=True, mlp_bias=True))
        write_model(path / "granite", GraniteConfig(**sizes, **heads, logits_scaling=2.0, tie_word_embeddings=True))
        write_model(path / "gpt2", GPT2Config(vocab_size=66, n_embd=32, n_layer=1, n_head=4))

    def test_cases_cut_what_they_say_they_cut(self, folder: Path) -> None:
        """Several micro-batches where several are wanted."""
        one, two = cases(folder, 1), cases(folder, 2)
        names = ("qwen3/t2", "odd/pieces_d2", "qwen3/pieces_t2", "qwen3/pieces_c2")

        assert [one[name]["steps"][0]["microbatches"] for name in ("odd/d1", "odd/pieces_d1")] == [1, 5]
        assert [two[name]["steps"][0]["microbatches"] for name in names] == [1, 3, 5, 5]

    def test_tensor_ranks_hold_parts_and_all_parameters_are_on_one_mesh(self, folder: Path) -> None:
        """Matrices, embedding and head are halves, norms whole, and none is left off the mesh of tensor ranks."""
        found = results(folder, 2, 1)["cut"]
        shapes = {name.removeprefix("model."): part for name, part in found["shapes"].items()}

        assert found["meshes"] == ["('shards', 'tensor')"]
        assert shapes["embed_tokens.weight"] == [33, 64]
        assert shapes["layers.0.self_attn.q_proj.weight"] == [32, 64]
        assert shapes["layers.0.self_attn.k_proj.weight"] == [16, 64]
        assert shapes["layers.0.self_attn.o_proj.weight"] == [64, 32]
        assert shapes["layers.0.mlp.down_proj.weight"] == [64, 64]
        assert shapes["layers.0.self_attn.q_norm.weight"] == [16]
        assert shapes["layers.1.input_layernorm.weight"] == [64]

    def test_buffers_that_no_folder_stores_are_those_of_a_loaded_model(self, folder: Path) -> None:
        """The model is built without memory; rotary frequencies come from rank 0 like the weights."""
        loaded = AutoModelForCausalLM.from_pretrained(folder / "qwen3").model.rotary_emb.inv_freq
        for rank in range(2):
            assert results(folder, 2, rank)["cut"]["rotary"] == loaded.tolist()
