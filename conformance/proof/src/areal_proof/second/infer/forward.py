"""One decoder, written out: token ids and named tensors in, logits and routes out.

Knows: qwen2, qwen3, qwen3_moe, llama and the decoder of qwen2_5_vl, by the names tensors have in a model folder.
Does not know: config.json (`architecture`), requests, sampling, where tensors come from, or how images are seen.

Legend: L tokens, C hidden size, H query heads, K key-value heads, D head size, E experts used per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from areal_proof.second.architecture import Architecture
from areal_proof.second.infer.ranks import Cut, OtherHosts, product
from areal_proof.second.vision import Picture, expanded, positions, seen

ROUTER = "mlp.gate.weight"


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


@torch.no_grad()
def forward(
    shape: Architecture,
    weights: Mapping[str, Tensor],
    ids: list[int],
    deltas: Mapping[str, Delta] | None = None,
    pictures: Sequence[Picture] = (),
    *,
    cut: Cut | None = None,
    others: OtherHosts | None = None,
) -> Computed:
    """Compute one whole sequence; nothing but the arguments has an influence on it. L counts tokens of images."""
    cut = cut or Cut(shape.layers)
    model = _Model(shape, weights, deltas or {}, cut, others)
    x_LC = _embedded(shape, weights, ids, pictures)
    placeholder = -1 if shape.vision is None else shape.vision.image_token
    turns = _rotations(shape, positions(ids, placeholder, pictures), x_LC)
    routes = []
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        x_LC = x_LC + model.attend(prefix, model.norm(x_LC, f"{prefix}input_layernorm"), turns)
        added, chosen = model.mix(prefix, model.norm(x_LC, f"{prefix}post_attention_layernorm"))
        x_LC = x_LC + added
        if chosen is not None:
            routes.append(chosen)
    name = "model.embed_tokens" if shape.tied else "lm_head"
    logits = product(model.norm(x_LC, "model.norm"), weights[f"{name}.weight"], name, cut, others).float()
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
    cut: Cut
    others: OtherHosts | None

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        out = product(x, weight, name, self.cut, self.others)
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
        group = shape.heads // shape.kv_heads
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
        if self.shape.normalize_experts:
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
