"""What a model is, by the config.json of its folder: the numbers that decide names, shapes and arithmetic.

Knows: the names and shapes of every tensor of five architectures, and which variants the second engines compute.
Does not know: how the two engines compute it, each in its own way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import ModelError
from areal_core.contract.train import Head
from areal_proof.second.vision import Vision

_UNSCALED = ("default", "mrope")
KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_5_vl")
EMBEDDING, LM_HEAD, SCORE = "model.embed_tokens.weight", "lm_head.weight", "score"


@frozen(kw_only=True)
class Architecture:
    """The numbers of config.json that decide names, shapes and arithmetic. `num_experts` 0 is a dense model.

    `sections` are the pairs of a head turned by time, height and width; empty where there is one direction.
    """

    kind: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    epsilon: float
    theta: float
    tied: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    num_experts: int
    experts_per_token: int
    expert_intermediate: int
    normalize_experts: bool
    expert_layers: tuple[int, ...]
    sections: tuple[int, ...]
    vision: Vision | None
    padding: int | None = None

    def shapes(self, head: Head) -> dict[str, tuple[int, ...]]:
        """Return name -> shape of every trainable tensor, tied ones once, in the order they are sent."""
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocab, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer(layer).items()}
        shapes["model.norm.weight"] = (self.hidden,)
        shapes |= self.vision.tensors() if self.vision is not None else {}
        if head is Head.VALUE:
            return shapes | {f"{SCORE}.weight": (1, self.hidden), f"{SCORE}.bias": (1,)}
        return shapes if self.tied else shapes | {LM_HEAD: (self.vocab, self.hidden)}

    def _layer(self, layer: int) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
        }
        biased = {f"self_attn.{name}_proj" for name in "qkv" if self.attention_bias}
        biased |= {"self_attn.o_proj"} if self.output_bias else set()
        if layer in self.expert_layers:
            shapes["mlp.gate"] = (self.num_experts, self.hidden)
            for expert in range(self.num_experts):
                shapes |= self._mlp(f"mlp.experts.{expert}", self.expert_intermediate)
        else:
            mlp = self._mlp("mlp", self.intermediate)
            biased |= set(mlp) if self.mlp_bias else set()
            shapes |= mlp
        named = {f"{name}.weight": shape for name, shape in shapes.items()}
        named |= {f"{name}.bias": shapes[name][:1] for name in sorted(biased)}
        norms = {"input_layernorm": self.hidden, "post_attention_layernorm": self.hidden}
        if self.kind.startswith("qwen3"):
            norms |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim}
        return named | {f"{name}.weight": (size,) for name, size in norms.items()}

    def _mlp(self, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        into = (width, self.hidden)
        return {f"{prefix}.gate_proj": into, f"{prefix}.up_proj": into, f"{prefix}.down_proj": into[::-1]}


def read_architecture(path: str, head: Head = Head.CAUSAL_LM) -> Architecture:
    """Read config.json.

    Raises:
        ModelError: no folder, no such model, or a variant that is not computed here.
    """
    whole = read_config(path)
    config = whole.get("text_config", whole)
    name, kind = str((whole.get("architectures") or ["none"])[0]), str(whole.get("model_type"))
    endings: tuple[str, ...] = ("ForConditionalGeneration",) if "vision_config" in whole else ("ForCausalLM",)
    if head is Head.VALUE:
        endings = ("ForCausalLM", "ForTokenClassification")
    if kind not in KINDS or not name.endswith(endings):
        raise ModelError(
            f"model folder {path!r} holds {name} ({kind})",
            why=f"this engine computes causal language models of {', '.join(KINDS)}",
            fix="choose another backend, or another model",
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    odd_layers = set(config.get("layer_types") or ()) - {"full_attention"} or config.get("use_sliding_window")
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    if odd_layers or scaling not in _UNSCALED or config.get("hidden_act") != "silu":
        raise ModelError(
            f"model folder {path!r} is a variant of {kind} that this engine does not compute",
            why="it knows full attention, unscaled rotary positions and silu",
            fix="choose another backend",
        )
    vision = Vision.of(whole) if "vision_config" in whole else None
    if vision is not None and set(whole["vision_config"]["fullatt_block_indexes"]) != set(range(vision.num_layers)):
        raise ModelError(f"the vision tower of {path!r} attends in windows", why="this engine's attends to everything")
    moe = kind == "qwen3_moe"
    every = range(int(config["num_hidden_layers"]))
    step, dense = int(config.get("decoder_sparse_step", 1)), set(config.get("mlp_only_layers") or ())
    return Architecture(
        kind=kind,
        vocab=int(config["vocab_size"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        layers=len(every),
        heads=int(config["num_attention_heads"]),
        kv_heads=int(config.get("num_key_value_heads") or config["num_attention_heads"]),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
        context=int(config.get("max_position_embeddings") or 0),
        epsilon=float(config["rms_norm_eps"]),
        theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        tied=bool(whole.get("tie_word_embeddings", False)),
        attention_bias=kind.startswith("qwen2") or bool(config.get("attention_bias")),
        output_bias=not kind.startswith("qwen2") and bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        num_experts=int(config.get("num_experts") or config["num_local_experts"]) if moe else 0,
        experts_per_token=int(config["num_experts_per_tok"]) if moe else 0,
        expert_intermediate=int(config["moe_intermediate_size"]) if moe else 0,
        normalize_experts=bool(config.get("norm_topk_prob")),
        expert_layers=tuple(layer for layer in every if moe and layer not in dense and (layer + 1) % step == 0),
        sections=tuple(rope.get("mrope_section") or ()),
        vision=vision,
        padding=config.get("pad_token_id"),
    )


def read_config(path: str) -> dict[str, Any]:  # Any: json of many types
    """Return config.json of a folder; ModelError if there is none to read."""
    try:
        config = json.loads((Path(path) / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model folder {path!r} cannot be read", why=str(error), fix="name a folder with config.json"
        ) from error
    if not isinstance(config, dict):
        raise ModelError(f"config.json of {path!r} is not an object", fix="copy the folder again")
    return config
