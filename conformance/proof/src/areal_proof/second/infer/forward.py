"""One decoder, written out: token ids and named tensors in, logits and routes out.

Knows: qwen2, qwen3, qwen3_moe, llama and the decoder of qwen2_5_vl, from config.json and the names tensors have in
a model folder.
Does not know: requests, sampling, where tensors come from, or how images become features (`vision`).

Legend: L tokens, C hidden size, H query heads, K key-value heads, D head size, E experts used per token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from areal_core.contract.errors import ModelError
from areal_proof.second.infer.ranks import product
from areal_proof.second.vision import Picture, Vision, expanded, positions, seen

KINDS = ("qwen2", "qwen3", "qwen3_moe", "llama", "qwen2_5_vl")
ROUTER = "mlp.gate.weight"


@frozen(kw_only=True)
class Architecture:
    """The numbers of config.json that a forward needs. `experts_per_token` is 0 for a dense model.

    `sections` are the pairs of a head turned by time, height and width; empty where there is one direction.
    """

    kind: str
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    epsilon: float
    theta: float
    tied: bool
    end_ids: tuple[int, ...]
    intermediate: int
    num_experts: int = 0
    experts_per_token: int = 0
    normalize_routes: bool = False
    sections: tuple[int, ...] = ()
    vision: Vision | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the model by its name in a model folder; a tied head is not one."""
        hidden, wide, narrow = self.hidden, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        found["model.norm.weight"] = (hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocab_size, hidden)
        block: dict[str, tuple[int, ...]] = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        block |= {
            f"self_attn.{part}_proj": (size, hidden) for part, size in zip("qkv", (wide, narrow, narrow), strict=True)
        }
        block["self_attn.o_proj"] = (hidden, wide)
        if self.kind.startswith("qwen3"):
            block |= {f"self_attn.{part}_norm": (self.head_dim,) for part in "qk"}
        if self.num_experts:
            block["mlp.gate"] = (self.num_experts, hidden)
        for mixer in [f"mlp.experts.{expert}" for expert in range(self.num_experts)] or ["mlp"]:
            block |= {f"{mixer}.{part}_proj": (self.intermediate, hidden) for part in ("gate", "up")}
            block[f"{mixer}.down_proj"] = (hidden, self.intermediate)
        for layer in range(self.num_layers):
            found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
            if self.kind.startswith("qwen2"):
                for part in "qkv":
                    found[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = block[f"self_attn.{part}_proj"][:1]
        return found if self.vision is None else found | self.vision.tensors()


@frozen(kw_only=True)
class Delta:
    """What an adapter adds to one linear layer: x -> scale * (x A^T) B^T."""

    down: Tensor
    up: Tensor
    scale: float


@frozen(kw_only=True, eq=False)
class Computed:
    """Logits float32 [L, V] of the token after each, and the experts each token went through, int32 [L, layers, E]."""

    logits: Tensor
    routes: Tensor | None


def read_architecture(folder: Path) -> Architecture:
    """Read config.json.

    Raises:
        ModelError: no folder, no configuration, or a model this forward does not know.
    """
    try:
        whole = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model folder {str(folder)!r} has no readable config.json",
            why=str(error),
            fix="give the folder of a Hugging Face causal language model",
        ) from error
    config = whole.get("text_config", whole)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    problem = _unknown(whole, config, rope)
    if problem:
        raise ModelError(f"model {str(folder)!r} cannot be served", why=problem, fix=f"serve one of {', '.join(KINDS)}")
    heads, kind = config["num_attention_heads"], whole["model_type"]
    experts = kind == "qwen3_moe"
    return Architecture(
        kind=kind,
        hidden=config["hidden_size"],
        intermediate=config["moe_intermediate_size" if experts else "intermediate_size"],
        num_experts=config.get("num_experts") or config["num_local_experts"] if experts else 0,
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        epsilon=config["rms_norm_eps"],
        theta=rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
        tied=bool(whole.get("tie_word_embeddings")),
        end_ids=_end_ids(folder, whole),
        experts_per_token=config["num_experts_per_tok"] if experts else 0,
        normalize_routes=bool(config.get("norm_topk_prob")),
        sections=tuple(rope.get("mrope_section") or ()),
        vision=Vision.of(whole) if "vision_config" in whole else None,
    )


def _unknown(whole: Mapping[str, Any], config: Mapping[str, Any], rope: Mapping[str, Any]) -> str:
    if whole.get("model_type") not in KINDS:
        return f"its model_type is {whole.get('model_type')!r}"
    vision = whole.get("vision_config")
    if vision and set(range(vision["depth"])) - set(vision["fullatt_block_indexes"]):
        return "its vision tower attends in windows"
    if rope.get("rope_type", "default") != "default":
        return f"it scales rotary positions by {rope['rope_type']!r}"
    if config.get("attention_bias") or config.get("mlp_bias") or config.get("mlp_only_layers"):
        return "it has biases, or layers without experts, that this forward leaves out"
    if config.get("decoder_sparse_step", 1) != 1:
        return "not every layer has experts"
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        return "not every layer attends to everything before it"
    return ""


def _end_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    found = None
    if (folder / "generation_config.json").is_file():
        found = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    found = config.get("eos_token_id") if found is None else found
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)


@torch.no_grad()
def forward(
    shape: Architecture,
    weights: Mapping[str, Tensor],
    ids: list[int],
    deltas: Mapping[str, Delta] | None = None,
    pictures: Sequence[Picture] = (),
    *,
    ranks: int = 1,
) -> Computed:
    """Compute one whole sequence; nothing but the arguments has an influence on it. L counts tokens of images."""
    model = _Model(shape, weights, deltas or {}, ranks)
    embedding = weights["model.embed_tokens.weight"]
    x_LC = _embedded(shape, weights, ids, pictures)
    placeholder = -1 if shape.vision is None else shape.vision.image_token
    turns = _rotations(shape, positions(ids, placeholder, pictures), x_LC)
    routes = []
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        x_LC = x_LC + model.attend(prefix, model.norm(x_LC, f"{prefix}input_layernorm"), turns)
        added, chosen = model.mix(prefix, model.norm(x_LC, f"{prefix}post_attention_layernorm"))
        x_LC = x_LC + added
        if chosen is not None:
            routes.append(chosen)
    head = embedding if shape.tied else weights["lm_head.weight"]
    logits = product(model.norm(x_LC, "model.norm"), head, "lm_head", ranks).float()
    return Computed(logits=logits, routes=torch.stack(routes, 1).int() if routes else None)


def _embedded(
    shape: Architecture, weights: Mapping[str, Tensor], ids: list[int], pictures: Sequence[Picture]
) -> Tensor:
    """Return what the first layer gets, [L, C]: embeddings, and features in the places of images."""
    embedding, vision = weights["model.embed_tokens.weight"], shape.vision
    if vision is None or not pictures:
        return embedding[torch.tensor(ids, device=embedding.device)]
    whole = torch.tensor(expanded(ids, vision.image_token, pictures), device=embedding.device)
    x_LC = embedding[whole]
    features = torch.cat([seen(vision, weights, picture) for picture in pictures])
    x_LC[(whole == vision.image_token).nonzero()[: len(features), 0]] = features
    return x_LC


def _rotations(shape: Architecture, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every token's angles, [L, D], from its positions [3, L]."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=like.device) / shape.head_dim
    sections = shape.sections or (len(steps),)
    directions = torch.cat([torch.full((size,), axis) for axis, size in enumerate(sections)])
    angles = places.to(like.device, torch.float32)[directions].T * shape.theta**-steps
    both = torch.cat([angles, angles], -1)
    return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _turned(x_HLD: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    half = x_HLD.shape[-1] // 2
    swapped = torch.cat([-x_HLD[..., half:], x_HLD[..., :half]], -1)
    return x_HLD * turns[0] + swapped * turns[1]


@frozen
class _Model:
    shape: Architecture
    weights: Mapping[str, Tensor]
    deltas: Mapping[str, Delta]
    ranks: int

    def linear(self, x: Tensor, name: str) -> Tensor:
        out, bias = product(x, self.weights[f"{name}.weight"], name, self.ranks), self.weights.get(f"{name}.bias")
        out = out if bias is None else out + bias
        delta = self.deltas.get(name)
        return out if delta is None else out + delta.scale * F.linear(F.linear(x, delta.down), delta.up)

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)
        return self.weights[f"{name}.weight"] * wide.to(x.dtype)

    def attend(self, prefix: str, x_LC: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        shape, length = self.shape, len(x_LC)
        query, key, value = (
            self.linear(x_LC, f"{prefix}self_attn.{part}_proj").view(length, -1, shape.head_dim) for part in "qkv"
        )
        if f"{prefix}self_attn.q_norm.weight" in self.weights:
            query, key = self.norm(query, f"{prefix}self_attn.q_norm"), self.norm(key, f"{prefix}self_attn.k_norm")
        query, key = (_turned(part.transpose(0, 1), turns) for part in (query, key))
        group = shape.num_heads // shape.num_kv_heads
        key, value = key.repeat_interleave(group, 0), value.transpose(0, 1).repeat_interleave(group, 0)
        scores_HLL = query @ key.transpose(1, 2) * shape.head_dim**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x_LC.device).triu(1)
        chances = scores_HLL.masked_fill(later, float("-inf")).softmax(-1, dtype=torch.float32).to(x_LC.dtype)
        return self.linear((chances @ value).transpose(0, 1).reshape(length, -1), f"{prefix}self_attn.o_proj")

    def mix(self, prefix: str, x_LC: Tensor) -> tuple[Tensor, Tensor | None]:
        if f"{prefix}{ROUTER}" not in self.weights:
            return self.gated(f"{prefix}mlp", x_LC), None
        chances = F.linear(x_LC, self.weights[f"{prefix}{ROUTER}"]).softmax(-1, dtype=torch.float32)
        share_LE, chosen_LE = chances.topk(self.shape.experts_per_token, -1)
        if self.shape.normalize_routes:
            share_LE = share_LE / share_LE.sum(-1, keepdim=True)
        out = torch.zeros_like(x_LC)
        for expert in sorted(set(chosen_LE.flatten().tolist())):
            rows, slots = (chosen_LE == expert).nonzero(as_tuple=True)
            part = self.gated(f"{prefix}mlp.experts.{expert}", x_LC[rows])
            out.index_add_(0, rows, part * share_LE[rows, slots].unsqueeze(1).to(part.dtype))
        return out, chosen_LE

    def gated(self, name: str, x: Tensor) -> Tensor:
        gate = F.silu(self.linear(x, f"{name}.gate_proj"))
        return self.linear(gate * self.linear(x, f"{name}.up_proj"), f"{name}.down_proj")
