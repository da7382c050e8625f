"""Attention over sequences packed end to end: no padding, no T x T mask.

Knows: one packing, and the fastest exact kernel for the device.
Does not know: models; it is handed to them through transformers' attention interface.

Why not the block mask transformers builds from position ids: it costs T * T. For 128 sequences
of 2,268 tokens on one core the mask takes 114 ms per layer, forward and backward; this takes 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from itertools import groupby
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from areal_core.contract.batch import Batch
from areal_core.contract.errors import ModelError
from areal_torch.context import ContextRanks

NAME = "areal_packed"
"""The name under which transformers finds this attention."""


@frozen(kw_only=True, eq=False)
class Packing:
    """Where the sequences of one micro-batch lie. Travels through the model as the keyword `packing`.

    `runs` are (number of sequences, length) of neighbours of equal length, so a batch sorted by
    length has the fewest. `predicted` are the tokens that have one before them in their sequence, int64.
    With `context` ranks the layers of each see its `part` of the tokens. A last sequence of its own fills them
    up to a multiple of the ranks.
    """

    cu_seqlens: Tensor
    positions: Tensor
    predicted: Tensor
    runs: tuple[tuple[int, int], ...]
    max_length: int
    context: ContextRanks | None = None

    @classmethod
    def of(cls, batch: Batch, context: ContextRanks | None = None) -> Packing:
        """Describe a batch; the tensors lie on its device."""
        lengths, ends, positions = batch.lengths.tolist(), batch.cu_seqlens, batch.positions
        predicted = positions.nonzero().squeeze(1)
        filling = -batch.num_tokens % context.size if context else 0
        if filling:
            lengths.append(filling)
            ends = torch.cat([ends, ends[-1:] + filling])
            positions = torch.cat([positions, torch.arange(filling, device=positions.device, dtype=positions.dtype)])
        return cls(
            cu_seqlens=ends,
            positions=positions,
            predicted=predicted,
            runs=tuple((len(list(run)), length) for length, run in groupby(lengths)),
            max_length=max(lengths, default=0),
            context=context,
        )

    @property
    def part(self) -> slice:
        """Return which tokens, filled up, the layers of this rank see."""
        num_tokens = len(self.positions)
        return self.context.part(num_tokens) if self.context else slice(0, num_tokens)

    def filled(self, tokens: Tensor) -> Tensor:
        """Return one value per token with zeros up to the number the layers see."""
        return torch.nn.functional.pad(tokens, (0, len(self.positions) - len(tokens)))


class Kernel(Protocol):
    """What computes packed attention on one type of device."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None) -> Tensor:
        """Attend causally within each sequence: [T, H, D] and twice [T, K, D], K dividing H -> [T, H, D].

        T are the tokens of `packing`, filled up, on every rank. `scaling` None is one over the root of D.
        """


_KERNELS: dict[str, Kernel] = {}


def use_kernel(device: str, kernel: Kernel) -> None:
    """Let `kernel` compute all attention on devices of a type, in this process, from now on. Idempotent.

    For devices that torch has no packed kernel for. Called by an engine before its model is built.
    """
    _KERNELS[device] = kernel


def register() -> str:
    """Make the attention known to transformers in this process and return its name. Idempotent.

    No mask is registered under the name, so transformers builds none.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    return NAME


def leave_uncompiled() -> None:
    """Keep torch.compile out of the attention in this process: each packing would be compiled anew. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, torch.compiler.disable(packed_attention))  # type: ignore[no-untyped-call]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packing: Packing | None = None,
    **options: Any,  # Any: what a model's attention passes besides; see _refuse
) -> tuple[Tensor, None]:
    """Attend causally within each sequence.

    Args:
        query: [1, H, T, D]; key and value: [1, K, T, D] with K dividing H (grouped queries).

    Returns:
        [1, T, H, D] and no weights.
    """
    if packing is None:
        raise ModelError(
            f"{type(module).__name__} does not hand its keyword arguments to its attention",
            why="packed sequences cannot be told apart without them",
            fix="use a model of transformers that supports attention backends",
        )
    _refuse(options)
    return attend(query.squeeze(0), key.squeeze(0), value.squeeze(0), packing, scaling).unsqueeze(0), None


def attend(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None = None) -> Tensor:
    """Attend causally within each sequence, over context ranks if there are any.

    Args:
        query: [H, T, D]; key and value: [K, T, D] with K dividing H; T are the tokens this rank's layers see.

    Returns:
        [T, H, D].
    """
    context = packing.context
    if context is not None:
        query = context.to_heads(query)
        key, value = (context.to_heads(context.spread_heads(tensor)) for tensor in (key, value))
    q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
    kernel = _KERNELS.get(query.device.type)
    if kernel is not None:
        out = kernel(q, k, v, packing, scaling)
    elif query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and _suits_flash(query.shape[-1]):
        out = _flash(q, k, v, packing, scaling)
    else:
        out = _by_length(q, k, v, packing.runs, scaling)
    return out if context is None else context.to_tokens(out)


def _suits_flash(head_dim: int) -> bool:
    """Tell whether the variable-length kernel takes heads of this size; the dense one fills others up."""
    return head_dim <= 256 and head_dim % 8 == 0


def _flash(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None) -> Tensor:
    """Call the variable-length flash kernel; window (-1, 0) is torch's way to say causal."""
    from torch.nn.attention.varlen import varlen_attn

    ends, longest = packing.cu_seqlens, packing.max_length
    # The kernel groups heads in any case; torch 2.11 has no word for it, later ones refuse without it.
    grouped: dict[str, Any] = {}  # Any: keywords
    if "enable_gqa" in signature(varlen_attn).parameters:
        grouped["enable_gqa"] = q.shape[1] != k.shape[1]
    out = varlen_attn(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0),
        **grouped,
    )
    assert isinstance(out, Tensor)
    return out


def _by_length(q: Tensor, k: Tensor, v: Tensor, runs: Sequence[tuple[int, int]], scaling: float | None) -> Tensor:
    """Call the dense kernel once per run of equal lengths, on views. `split` so that backward is one concatenation."""
    sizes = [count * length for count, length in runs]
    grouped = q.shape[1] != k.shape[1]
    outs = []
    for (count, length), *parts in zip(
        runs, torch.split(q, sizes), torch.split(k, sizes), torch.split(v, sizes), strict=True
    ):
        qs, ks, vs = (part.view(count, length, *part.shape[1:]).transpose(1, 2) for part in parts)
        out = scaled_dot_product_attention(qs, ks, vs, is_causal=True, scale=scaling, enable_gqa=grouped)
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outs)


def _refuse(options: dict[str, Any]) -> None:
    for name in ("sliding_window", "softcap", "s_aux", "position_bias", "cache"):
        if options.get(name) is not None:
            raise ModelError(
                f"the model's attention uses {name!r}",
                why="packed attention here is plain causal attention",
                fix="choose a model with full attention in every layer",
            )
