"""Layers of plain torch, in the places where Megatron has Transformer Engine's.

Knows: norms that tensor ranks share by tokens, causal attention over packed sequences and context ranks.
Does not know: models. They come in through Megatron's public ModuleSpec.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from areal_megatron.library import HAVE_TE, TransformerBlockSubmodules, get_gpt_decoder_block_spec
from areal_megatron.packing import PackedSequences
from areal_torch.attention import attend
from areal_torch.context import ContextRanks


class Norm(nn.Module):
    """Root mean square norm. Any, here and below: a TransformerConfig, and what Megatron passes besides."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **options: Any) -> None:
        """Build it without values."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension, in float32."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class PackedAttention(nn.Module):
    """Attention of each token to those before it in its sequence."""

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **options: Any) -> None:
        """Build it; it has no parameters."""
        super().__init__()
        self.scale = softmax_scale or config.kv_channels**-0.5
        group = options["pg_collection"].cp
        self.context = ContextRanks(group) if group.size() > 1 else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedSequences,
        **options: Any,
    ) -> Tensor:
        """Return [S / c, H * D] of query [S / c, H, D] and fewer heads of key and value. Collective over context."""
        packing, context = packed_seq_params.packing, self.context
        assert packing is not None
        q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
        if context is None:
            return attend(q, k, v, packing, self.scale).flatten(1)
        natural = packed_seq_params.natural
        assert natural is not None
        q = context.to_heads(q)[:, natural]
        k, v = (context.to_heads(context.spread_heads(tensor))[:, natural] for tensor in (k, v))
        out = attend(q, k, v, packing, self.scale)
        return context.to_tokens(torch.zeros_like(out).index_copy(0, natural, out)).flatten(1)


def torch_computes(device: str) -> bool:
    """Tell whether a type of device computes with the layers here: a CPU, and where Transformer Engine is missing."""
    return device == "cpu" or not HAVE_TE


def layers_of_torch(config: Any, vp_stage: int | None) -> Any:
    """Return the layers of one stage: Megatron's own, but for norms and attention. Any: megatron is not typed."""
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    for layer in spec.layer_specs:
        parts, attention = layer.submodules, layer.submodules.self_attention.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = Norm
        attention.core_attention = PackedAttention
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = Norm
    return TransformerBlockSubmodules(layer_specs=spec.layer_specs, layer_norm=Norm)
