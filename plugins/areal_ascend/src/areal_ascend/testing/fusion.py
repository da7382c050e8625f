"""torch_npu's fused attention over packed sequences, computed on the host as its documentation says.

Knows: the documented meaning and limits of layout TND; an argument it does not know the meaning of is refused.
Does not know: aclnnFlashAttentionVarLenScore, which computes it on an NPU.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from areal_ascend.testing.kernels import on_host

_MASK = 2048
_MOST_SEQUENCES, _MOST_TOKENS, _MOST_HEADS, _WIDEST = 1024, 1 << 20, 256, 768
_CAUSAL = (2, 3)
_STATISTICS = 8
"""Columns of the softmax's maxima and sums, which an NPU keeps for the backward pass."""


def install() -> object:
    """Replace the operator and its derivative in this process, for as long as what is returned lives."""
    library: Any = torch.library.Library("npu", "IMPL")  # type: ignore[no-untyped-call]  # Any: so are its methods
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("npu_fusion_attention", on_host(_forward), "PrivateUse1")
        library.impl("npu_fusion_attention_grad", on_host(_backward), "PrivateUse1")
    return library


def _forward(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *rest: Any, **more: Any
) -> Any:
    options = {**dict(zip(_AFTER_LAYOUT, rest, strict=False)), **more}
    ends = _check(query, key, value, head_num, input_layout, options)
    out = _attend(query, key, value, ends, float(options.get("scale", 1.0)))
    statistics = query.new_zeros((query.shape[0], head_num, _STATISTICS), dtype=torch.float32)
    return out, statistics, statistics.clone(), query.new_empty(0), 0, 0, 0


def _backward(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, **options: Any
) -> Any:
    ends = _check(query, key, value, head_num, input_layout, options)
    with torch.enable_grad():
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (query, key, value)]
        out = _attend(leaves[0], leaves[1], leaves[2], ends, float(options.get("scale_value", 1.0)))
        grads = torch.autograd.grad(out, leaves, dy)
    return (*grads, query.new_empty(0), query.new_empty(0))


def _attend(query: Tensor, key: Tensor, value: Tensor, ends: Sequence[int], scale: float) -> Tensor:
    """[T, H, D] and twice [T, K, D] -> [T, H, D], a softmax per sequence in float32."""
    groups = query.shape[1] // key.shape[1]
    outs = []
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        q, k, v = (tensor[start:end].transpose(0, 1).float() for tensor in (query, key, value))
        k, v = (tensor.repeat_interleave(groups, 0) for tensor in (k, v))
        scores = (q @ k.mT * scale).masked_fill(_later(end - start), -math.inf)
        outs.append((scores.softmax(-1) @ v).transpose(0, 1).to(query.dtype))
    return torch.cat(outs)


def _check(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, options: dict[str, Any]
) -> tuple[int, ...]:
    """Hold a call to the documentation; return where the sequences end."""
    mask, mode = options.get("atten_mask"), options.get("sparse_mode", 0)
    ends = tuple(options.get("actual_seq_qlen") or ())
    told = {
        "layout TND": layout == "TND",
        "one dtype": query.dtype == key.dtype == value.dtype,
        "keys as values": key.shape == value.shape,
        "head_num": heads == query.shape[1] <= _MOST_HEADS and heads % key.shape[1] == 0,
        "width": query.shape[2] == key.shape[2] <= _WIDEST,
        "as many queries as keys": ends == tuple(options.get("actual_seq_kvlen") or ()),
        "ends that rise to T": sorted(ends) == list(ends) and bool(ends) and ends[-1] == query.shape[0],
        "sequences": len(ends) <= _MOST_SEQUENCES and query.shape[0] <= _MOST_TOKENS,
        "the compressed causal mask": mode in _CAUSAL and mask is not None and bool(mask.equal(_later(_MASK))),
        "no dropout": options.get("keep_prob", 1.0) == 1.0,
    }
    wrong = [name for name, holds in told.items() if not holds]
    known = {*_SETTLED, "scale", "scale_value"}
    odd = [name for name, given in options.items() if name not in known and _is_given(given)]
    if wrong or odd:
        raise RuntimeError(f"npu_fusion_attention, as documented, does not take this: {', '.join([*wrong, *odd])}")
    return ends


def _is_given(value: object) -> bool:
    return value is not None and not (isinstance(value, str) and not value)


def _later(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


_AFTER_LAYOUT = (
    *("pse", "padding_mask", "atten_mask", "scale", "keep_prob", "pre_tockens", "next_tockens", "inner_precise"),
    *("prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode", "gen_mask_parallel", "sync", "softmax_layout"),
    *("sink", "dropout_mask", "seed", "offset"),
)
_SETTLED = frozenset(
    {
        *("atten_mask", "keep_prob", "pre_tockens", "next_tockens", "inner_precise", "actual_seq_qlen"),
        *("actual_seq_kvlen", "sparse_mode", "gen_mask_parallel", "sync", "seed", "offset", "numels"),
        *("softmax_max", "softmax_sum", "softmax_in", "attention_in"),
    }
)
