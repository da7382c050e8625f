"""The transformer as functions of a table of tensors: right-padded sequences in, hidden states out.

Knows: attention, rotary positions, the two kinds of MLP, low-rank adapters, shares of a layer.
Does not know: losses, gradients, optimizers, files.
Legend: N sequences, L padded length, D hidden, H heads, K head size, T tokens.

Real tokens come first in a row and attention looks back only, so padding is never seen and needs no mask.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from areal_proof.second.architecture import EMBEDDING, LM_HEAD, SCORE, Architecture
from areal_proof.second.train.adapters import Adapters
from areal_proof.second.train.experts import choose
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.shown import Shown
from areal_proof.second.vision import seen


@frozen(kw_only=True, eq=False)
class Network:
    """One model. `tensors` is shared with whoever trains them; matrix products run in `dtype`."""

    architecture: Architecture
    tensors: Mapping[str, Tensor]
    adapters: Adapters
    ranks: Ranks
    dtype: torch.dtype
    recompute: bool = False

    def hidden(self, ids_NL: Tensor, routes_NLEK: Tensor | None = None, shown: Shown | None = None) -> Tensor:
        """Return the last hidden states [N, L, D]; `routes_NLEK` are recorded experts, one E per expert layer."""
        places = torch.arange(ids_NL.shape[1], device=ids_NL.device).expand(len(ids_NL), 3, -1)
        rotation = _rotation(places if shown is None else shown.positions(), self.architecture)
        x_NLD = functional.embedding(ids_NL, self.tensors[EMBEDDING], self.architecture.padding)
        if shown is not None:
            x_NLD = x_NLD.masked_scatter(shown.marks_NL[..., None], self.seen(shown))
        for layer in range(self.architecture.layers):
            routes = None
            if routes_NLEK is not None and layer in self.architecture.expert_layers:
                routes = routes_NLEK[:, :, self.architecture.expert_layers.index(layer)]
            if self.recompute and torch.is_grad_enabled():
                x_NLD = checkpoint(self._layer, layer, x_NLD, rotation, routes, use_reentrant=False)
            else:
                x_NLD = self._layer(layer, x_NLD, rotation, routes)
        return self._norm("model.norm", x_NLD)

    def seen(self, shown: Shown) -> Tensor:
        """Return the features of all pictures, one after another."""
        vision = self.architecture.vision
        assert vision is not None, "a checked batch shows pictures only to a model that sees"
        return torch.cat([seen(vision, self.tensors, picture) for row in shown.pictures for picture in row])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of some hidden states [.., D]."""
        weight = self.tensors[EMBEDDING if self.architecture.tied else LM_HEAD]
        return functional.linear(hidden.to(self.dtype), weight.to(self.dtype)).float()

    def values(self, hidden: Tensor) -> Tensor:
        """Return the value head's float32 estimate for each hidden state [.., D]."""
        return functional.linear(hidden, self.tensors[f"{SCORE}.weight"], self.tensors[f"{SCORE}.bias"]).squeeze(-1)

    def _layer(self, layer: int, x: Tensor, rotation: tuple[Tensor, Tensor], routes: Tensor | None) -> Tensor:
        name = f"model.layers.{layer}"
        x = x + self._attention(f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x), rotation)
        inner = self._norm(f"{name}.post_attention_layernorm", x)
        if layer in self.architecture.expert_layers:
            return x + self._experts(f"{name}.mlp", inner, routes)
        return x + self._mlp(f"{name}.mlp", inner, self.architecture.intermediate)

    def _attention(self, name: str, x_NLD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        arch = self.architecture
        size = arch.head_dim
        mine, mine_kv = self.ranks.share(arch.heads), self.ranks.share(arch.kv_heads)

        def heads(kind: str, share: slice) -> Tensor:
            rows = slice(share.start * size, share.stop * size)
            y = self._linear(f"{name}.{kind}_proj", x_NLD, rows=rows)
            return y.view(*y.shape[:-1], -1, size).transpose(1, 2)

        q_NHLK, k_NHLK, v_NHLK = heads("q", mine), heads("k", mine_kv), heads("v", mine_kv)
        if f"{name}.q_norm.weight" in self.tensors:
            q_NHLK, k_NHLK = self._norm(f"{name}.q_norm", q_NHLK), self._norm(f"{name}.k_norm", k_NHLK)
        q_NHLK, k_NHLK = _rotate(q_NHLK, rotation), _rotate(k_NHLK, rotation)
        repeats = arch.heads // arch.kv_heads
        k_NHLK, v_NHLK = k_NHLK.repeat_interleave(repeats, dim=1), v_NHLK.repeat_interleave(repeats, dim=1)
        scores = q_NHLK @ k_NHLK.transpose(2, 3) * size**-0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v_NHLK
        flat = mixed.transpose(1, 2).flatten(2)
        return self._linear_sum(f"{name}.o_proj", flat, slice(mine.start * size, mine.stop * size))

    def _mlp(self, name: str, x: Tensor, width: int) -> Tensor:
        share = self.ranks.share(width)
        gate = self._linear(f"{name}.gate_proj", x, rows=share)
        up = self._linear(f"{name}.up_proj", x, rows=share)
        return self._linear_sum(f"{name}.down_proj", functional.silu(gate) * up, share)

    def _experts(self, name: str, x_NLD: Tensor, routes: Tensor | None) -> Tensor:
        """Let each token through the experts chosen for it, one expert after another."""
        arch = self.architecture
        x_TD = x_NLD.flatten(0, 1)
        recorded = None if routes is None else routes.flatten(0, 1)
        logits_TE = self._linear(f"{name}.gate", x_TD)
        chosen_TK, weights_TK = choose(logits_TE, arch.experts_per_token, arch.normalize_experts, recorded)
        out_TD = torch.zeros_like(x_TD)
        for expert in range(arch.num_experts):
            token, place = (chosen_TK == expert).nonzero(as_tuple=True)
            part = self._mlp(f"{name}.experts.{expert}", x_TD[token], arch.expert_intermediate)
            out_TD = out_TD.index_add(0, token, part * weights_TK[token, place, None])
        return out_TD.view_as(x_NLD)

    def _linear(self, name: str, x: Tensor, *, rows: slice = slice(None)) -> Tensor:
        """Return some rows of W x + b, of the adapter too."""
        bias = self.tensors.get(f"{name}.bias")
        part = None if bias is None else bias[rows].to(self.dtype)
        y = functional.linear(x.to(self.dtype), self.tensors[f"{name}.weight"][rows].to(self.dtype), part).float()
        low_rank = self.adapters.pair(name)
        if low_rank is None:
            return y
        a, b = (matrix.to(self.dtype) for matrix in low_rank)
        return y + self.adapters.scale * functional.linear(functional.linear(x.to(self.dtype), a), b[rows]).float()

    def _linear_sum(self, name: str, x: Tensor, columns: slice) -> Tensor:
        """Return W x + b where this rank has only some entries of x."""
        x = x.to(self.dtype)
        y = functional.linear(x, self.tensors[f"{name}.weight"][:, columns].to(self.dtype)).float()
        low_rank = self.adapters.pair(name)
        if low_rank is not None:
            a, b = (matrix.to(self.dtype) for matrix in low_rank)
            y = y + self.adapters.scale * functional.linear(functional.linear(x, a[:, columns]), b).float()
        y = self.ranks.layer_sum(y)
        bias = self.tensors.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.architecture.epsilon)
        return x * scale * self.tensors[f"{name}.weight"]


def _rotation(places_N3L: Tensor, architecture: Architecture) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [N, 1, L, K]: each pair of a head turns with time, height or width."""
    size = architecture.head_dim
    rates = architecture.theta ** -(torch.arange(0, size, 2, device=places_N3L.device, dtype=torch.float32) / size)
    sections = architecture.sections or (size // 2, 0, 0)
    direction = [which for which, count in enumerate(sections) for _ in range(count)]
    angles = (places_N3L[:, direction].transpose(1, 2) * rates).repeat(1, 1, 2)[:, None]
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
