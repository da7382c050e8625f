"""What a plan of transformers says about each module, and which plans are refused; no rank is needed for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    DeepseekV2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Phi3Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from areal_core.contract.errors import LayoutError, ModelError
from areal_core.contract.train import Head
from areal_fsdp.tensor import Cut, check, cuts
from areal_torch import hf
from areal_torch.testing.models import make_tiny_model

_ENDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **_ENDS,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}


def empty(config: Any, head: Head = Head.CAUSAL_LM) -> Any:
    """Return a model without memory. Any: transformers is not typed here."""
    builder = AutoModelForTokenClassification if head is Head.VALUE else AutoModelForCausalLM
    with torch.device("meta"):
        return builder.from_config(config)


def test_every_module_with_parameters_gets_its_part() -> None:
    """The plan's words, and what it leaves unsaid: the embedding, the head, norms."""
    found = cuts(empty(Qwen3Config(**_SIZES, head_dim=8)))

    assert found == {
        "model.embed_tokens": Cut.VOCABULARY,
        "model.layers.0.self_attn.q_proj": Cut.COLUMN,
        "model.layers.0.self_attn.k_proj": Cut.COLUMN,
        "model.layers.0.self_attn.v_proj": Cut.COLUMN,
        "model.layers.0.self_attn.o_proj": Cut.ROW,
        "model.layers.0.self_attn.q_norm": Cut.PARTIAL,
        "model.layers.0.self_attn.k_norm": Cut.PARTIAL,
        "model.layers.0.mlp.gate_proj": Cut.COLUMN,
        "model.layers.0.mlp.up_proj": Cut.COLUMN,
        "model.layers.0.mlp.down_proj": Cut.ROW,
        "model.layers.0.input_layernorm": Cut.WHOLE,
        "model.layers.0.post_attention_layernorm": Cut.WHOLE,
        "model.norm": Cut.WHOLE,
        "lm_head": Cut.HEAD,
    }


def test_norms_of_heads_are_partial_even_where_the_plan_forgets_them() -> None:
    """Plans of older versions of transformers do not name them, and their gradient is a part all the same."""
    model = empty(Qwen3Config(**_SIZES, head_dim=8))
    model._tp_plan = {name: word for name, word in model._tp_plan.items() if not name.endswith("_norm")}

    assert cuts(model)["model.layers.0.self_attn.q_norm"] is Cut.PARTIAL


@pytest.mark.parametrize("config", [Qwen3MoeConfig(**_SIZES, **_EXPERTS), Qwen2MoeConfig(**_SIZES, **_EXPERTS)])
def test_experts_are_shared_out_and_their_router_is_not(config: Any) -> None:
    """Every rank must route alike; what the plan does not mention, shared experts among it, all ranks compute."""
    found = cuts(empty(config))
    names = {name.removeprefix("model.layers.0.mlp."): cut for name, cut in found.items() if ".mlp." in name}

    assert names.pop("experts") is Cut.EXPERTS
    assert set(names.values()) == {Cut.WHOLE}


def test_a_value_head_is_whole() -> None:
    """One row cannot be shared out."""
    found = cuts(empty(LlamaConfig(**_SIZES, num_labels=1), Head.VALUE))

    assert found["score"] is Cut.WHOLE
    assert Cut.HEAD not in found.values()


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
        LlamaConfig(**_SIZES | {"vocab_size": 31}),
        GraniteConfig(**_SIZES),
    ],
)
def test_other_families_with_a_plan_are_taken(config: Any) -> None:
    """Nothing here names a family; a vocabulary need not divide."""
    check(empty(config), 2)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4), "it comes with no plan for that"),
        (Phi3Config(**_SIZES), "its plan says 'rowwise_split_input' about model.layers.0.self_attn.o_proj"),
        (
            DeepseekV2Config(**_SIZES | {"num_key_value_heads": 4}, first_k_dense_replace=1),
            "self_attn.kv_a_proj_with_mqa",
        ),
    ],
)
def test_plans_that_ask_for_more_are_refused(config: Any, says: str) -> None:
    """Rather than cut some other way than the plan's authors meant."""
    with pytest.raises(ModelError, match="cannot be sharded over tensor ranks") as refusal:
        check(empty(config), 2)

    assert says in str(refusal.value)


def test_a_module_beside_cut_ones_that_the_plan_does_not_name_is_refused() -> None:
    """It may see a part of what it was made for, and compute something wrong without a sound."""
    model = empty(LlamaConfig(**_SIZES))
    model._tp_plan = {name: word for name, word in model._tp_plan.items() if not name.endswith("o_proj")}

    with pytest.raises(ModelError, match=r"says nothing about model\.layers\.0\.self_attn\.o_proj"):
        check(model, 2)


@pytest.mark.parametrize(
    ("config", "degree", "says"),
    [
        (LlamaConfig(**_SIZES), 3, "t3 does not divide 4 attention heads"),
        (LlamaConfig(**_SIZES), 4, "t4 does not divide 2 key and value heads"),
        (
            LlamaConfig(**_SIZES | {"vocab_size": 9, "num_key_value_heads": 4}),
            4,
            "t4 leaves a tensor rank without any of 9 vocabulary entries",
        ),
        (LlamaConfig(**_SIZES | {"intermediate_size": 47}), 2, "t2 does not divide 47 rows of model.layers.0.mlp"),
        (Qwen3MoeConfig(**_SIZES, **_EXPERTS | {"num_experts": 3}), 2, "t2 does not divide 3 experts"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(config: Any, degree: int, says: str) -> None:
    """With the thing, its size, and the degrees that would do."""
    with pytest.raises(LayoutError, match=says):
        check(empty(config), degree)


def test_plans_are_read_from_the_empty_model(tmp_path: Path) -> None:
    """Refusals come before weights: what the engine builds on the meta device carries the plan."""
    path = str(make_tiny_model(tmp_path / "model"))
    model = hf.empty_model(hf.load_config(path, Head.CAUSAL_LM), Head.CAUSAL_LM)

    check(model, 2)
    assert all(parameter.is_meta for parameter in model.parameters())
