"""The attention function the model calls in place of its own: reads and writes the cache slab.

Knows: one packed step, prompt tokens first and then one token per running row.
Does not know: which request a row belongs to, or when it ends.

transformers hands every attention layer to a function registered by name and passes
unknown keyword arguments through, so the model's own forward runs unchanged.
Legend: T tokens of the step, R rows, H query heads, K key-value heads, D head size, L cache length read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field, frozen
from torch import Tensor, nn

from areal_core.contract.errors import ModelError

ATTENTION_NAME = "areal_reference_slab"
IGNORED_ARGUMENTS = frozenset({"dropout", "position_ids", "is_causal", "cache_position"})
"""Keyword arguments that change nothing in a causal forward without dropout."""


@frozen(kw_only=True, eq=False)
class PromptLayout:
    """How packed prompt tokens become a right-padded square: `gather` [P * W] in, `scatter` [tokens] out."""

    num_tokens: int
    num_prompts: int
    width: int
    gather: Tensor
    scatter: Tensor


@frozen(kw_only=True, eq=False)
class PrefixCopy:
    """Cache entries of `source` rows that `target` rows share, up to the longest prefix."""

    source: Tensor
    target: Tensor
    length: int


@define(kw_only=True, eq=False)
class LayerShape:
    """What a layer caches per token: K heads of D_key and D_value numbers, at most `window` tokens back."""

    num_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    foreign: tuple[str, ...] = ()
    """Names of keyword arguments this attention does not know."""


@define(kw_only=True, eq=False)
class AttentionStep:
    """Everything one forward needs, made once per step and read by every layer.

    `write` maps a number of heads to flat cache rows [T * K]; `bias` maps it to an
    additive mask [R * K, 1, L]. `rows` None means rows 0..R-1 in order.
    """

    keys: list[Tensor]
    values: list[Tensor]
    write: Mapping[int, Tensor]
    bias: Mapping[int, Tensor]
    num_rows: int
    length: int
    rows: Tensor | None = None
    prompts: PromptLayout | None = None
    copies: PrefixCopy | None = None


@define(kw_only=True, eq=False)
class ProbeStep:
    """A first forward that only learns what each layer caches. Layers appear in calling order."""

    layers: dict[int, LayerShape] = field(factory=dict)


def slab_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    areal_step: AttentionStep | ProbeStep | None = None,
    **options: Any,  # Any: whatever the architecture passes; the probe judges it
) -> tuple[Tensor, None]:
    """Attend for one layer. Called by transformers with query [1, H, T, D], key and value [1, K, T, D].

    Returns:
        The heads' outputs, [1, T, H, D], and no weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    if isinstance(areal_step, ProbeStep):
        areal_step.layers[layer] = _shape_of(key, value, options)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2), None
    if areal_step is None:
        raise ModelError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention function",
            why="the reference generator keeps its own cache and reaches it through them",
            fix="use a model on transformers' attention interface, or another inference backend",
        )
    query, key, value = (heads[0].transpose(0, 1) for heads in (query, key, value))
    return attend(areal_step, layer, query, key, value, scale).unsqueeze(0), None


def attend(step: AttentionStep, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Cache keys and values [T, K, D] of one layer and attend from queries [T, H, D]; return [T, H, D]."""
    _write(step, layer, key, value)
    parts = []
    if step.prompts is not None:
        parts.append(_attend_prompts(step.prompts, query, key, value, scale))
    if step.num_rows:
        parts.append(_attend_rows(step, layer, query[len(query) - step.num_rows :], scale))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _shape_of(key: Tensor, value: Tensor, options: Mapping[str, Any]) -> LayerShape:
    given = {name: option for name, option in options.items() if option is not None and option is not False}
    window = given.pop("sliding_window", None)
    foreign = tuple(sorted(set(given) - IGNORED_ARGUMENTS))
    return LayerShape(
        num_heads=key.shape[1], key_dim=key.shape[-1], value_dim=value.shape[-1], window=window, foreign=foreign
    )


def _write(step: AttentionStep, layer: int, key: Tensor, value: Tensor) -> None:
    """Put this step's keys and values into the slab.

    Shared prefixes are copied after the prompts and before the rows' own tokens: the copy is as long as the
    longest prefix, so it may run over the end of a shorter one.
    """
    target = step.write[key.shape[1]]
    for slab, fresh in ((step.keys[layer], key), (step.values[layer], value)):
        dim = fresh.shape[-1]
        flat, tokens = slab.view(-1, dim), fresh.reshape(-1, dim)
        if step.copies is None:
            flat.index_copy_(0, target, tokens)
            continue
        cut = len(target) - step.num_rows * key.shape[1]
        flat.index_copy_(0, target[:cut], tokens[:cut])
        prefix = slab[:, :, : step.copies.length]
        prefix.index_copy_(0, step.copies.target, prefix.index_select(0, step.copies.source))
        flat.index_copy_(0, target[cut:], tokens[cut:])


def _attend_prompts(layout: PromptLayout, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attend inside each prompt; padding is on the right, so causality hides it. Returns [tokens, H, D]."""
    shape = (layout.num_prompts, layout.width)
    queries, keys, values = (
        part.index_select(0, layout.gather).view(*shape, *part.shape[1:]).transpose(1, 2)
        for part in (query, key, value)
    )
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, layout.scatter)


def _attend_rows(step: AttentionStep, layer: int, query: Tensor, scale: float) -> Tensor:
    """Attend from one token per row over its cache; query [R, H, D]. Returns [R, H, D]."""
    keys, values = _read(step, step.keys[layer]), _read(step, step.values[layer])
    num_heads = step.keys[layer].shape[1]
    grouped = query.reshape(step.num_rows * num_heads, -1, query.shape[-1])
    scores = torch.baddbmm(step.bias[num_heads], grouped, keys.transpose(1, 2), alpha=scale)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values).view(step.num_rows, query.shape[1], values.shape[-1])


def _read(step: AttentionStep, slab: Tensor) -> Tensor:
    """Return the rows' cache as [R * K, L, D]: a view for rows in order, else a copy."""
    if step.rows is None:
        return slab[: step.num_rows].flatten(0, 1)[:, : step.length]
    return slab[:, :, : step.length].index_select(0, step.rows).flatten(0, 1)
