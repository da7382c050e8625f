"""One forward over a packed step: the model's own, or the same layers without what transformers does around them.

Knows: which architectures are made of norms, projections, rotary positions and an MLP and nothing else, and in which
order these are computed.
Does not know: the step (`runner`), the cache (`attention`), or any weight: it calls the model's modules, so a new
version, an adapter or a hook counts as in the model's own forward.

On a small model most of a step is calls, not arithmetic, and transformers makes about twice as many as a decoder needs.
Legend: T tokens of the step, H query heads, K key-value heads, D head size, E hidden size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from areal_reference.infer.attention import AttentionStep, attend

PLAIN_ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
FIRST_POSITIONS = 64


class Forward(Protocol):
    """Computes one step; called in the compute thread, in inference mode."""

    def __call__(self, tokens: Tensor, positions: Tensor, step: AttentionStep, keep: int) -> Tensor:
        """Return the logits [keep, V] behind the last `keep` of `tokens` [T], which stand at `positions` [T]."""


class OwnForward:
    """What the architecture computes, through transformers."""

    def __init__(self, model: Any) -> None:  # Any: transformers is untyped
        self._model = model

    def __call__(self, tokens: Tensor, positions: Tensor, step: AttentionStep, keep: int) -> Tensor:
        """Return logits [keep, V]."""
        output = self._model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=keep,
            areal_step=step,
        )
        logits: Tensor = output.logits[0]
        return logits


@frozen(kw_only=True, eq=False)
class _Layer:
    """The modules of one layer. Any: transformers is untyped; `query_norm`, `key_norm` are None where it has none."""

    before_attention: Any
    query: Any
    key: Any
    value: Any
    query_norm: Any
    key_norm: Any
    output: Any
    before_mlp: Any
    mlp: Any
    head_dim: int
    scale: float


class PlainForward:
    """What a model of `PLAIN_ARCHITECTURES` computes, layer by layer."""

    def __init__(self, model: Any) -> None:
        """Find the modules; the model keeps them as long as it serves."""
        decoder = model.model
        self._embedding, self._rotary = decoder.embed_tokens, decoder.rotary_emb
        self._layers = [_layer(each) for each in decoder.layers[: model.config.num_hidden_layers]]
        self._norm, self._head = _in_one_call(decoder.norm), model.lm_head
        self._turned = self._turns(FIRST_POSITIONS)

    def __call__(self, tokens: Tensor, positions: Tensor, step: AttentionStep, keep: int) -> Tensor:
        """Return logits [keep, V]."""
        while step.keys[0].shape[2] > self._turned.shape[1]:
            self._turned = self._turns(2 * self._turned.shape[1])
        cos, sin = self._turned.index_select(1, positions).unsqueeze(2)
        hidden = self._embedding(tokens)
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attention(layer, index, layer.before_attention(hidden), (cos, sin), step)
            hidden = hidden + layer.mlp(layer.before_mlp(hidden))
        logits: Tensor = self._head(self._norm(hidden[-keep:]))
        return logits

    def _attention(
        self, layer: _Layer, index: int, given: Tensor, turn: tuple[Tensor, Tensor], step: AttentionStep
    ) -> Tensor:
        """Return what one layer's attention adds, [T, E]."""
        query, key, value = (
            part(given).view(len(given), -1, layer.head_dim) for part in (layer.query, layer.key, layer.value)
        )
        if layer.query_norm is not None:
            query, key = layer.query_norm(query), layer.key_norm(key)
        num_heads = query.shape[1]
        turned = _turned(torch.cat((query, key), 1), *turn)
        made: Tensor = layer.output(
            attend(step, index, turned[:, :num_heads], turned[:, num_heads:], value, layer.scale).flatten(1)
        )
        return made

    def _turns(self, num_positions: int) -> Tensor:
        """Return, of every position, the cosines and the sines, those of the first half negative, [2, positions, D]."""
        weight = self._embedding.weight
        with torch.inference_mode():
            places = torch.arange(num_positions, device=weight.device).unsqueeze(0)
            cos, sin = self._rotary(weight.new_zeros(1), places)
            half = sin.shape[-1] // 2
            return torch.stack((cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)))


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return heads [T, H, D] turned to their places by cos, sin [T, 1, D]."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
    return (heads * cos).add_(swapped.mul_(sin))


def _in_one_call(norm: Any) -> Any:
    """Return a norm; where torch's own gives the same bits, which it does in float32, it computes with that."""
    if norm is not None:
        size = norm.weight.shape

        def quick(hidden: Tensor) -> Tensor:
            return F.rms_norm(hidden, size, norm.weight, norm.variance_epsilon)

        made_up = torch.linspace(-2.0, 3.0, 7 * size[0]).view(7, -1).to(norm.weight)
        if torch.equal(norm(made_up), quick(made_up)):
            norm.forward = quick
    return norm


def _layer(layer: Any) -> _Layer:
    attention = layer.self_attn
    return _Layer(
        before_attention=_in_one_call(layer.input_layernorm),
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        query_norm=_in_one_call(getattr(attention, "q_norm", None)),
        key_norm=_in_one_call(getattr(attention, "k_norm", None)),
        output=attention.o_proj,
        before_mlp=_in_one_call(layer.post_attention_layernorm),
        mlp=layer.mlp,
        head_dim=attention.head_dim,
        scale=attention.scaling,
    )
