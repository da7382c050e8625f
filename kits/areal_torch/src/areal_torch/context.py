"""One sequence over several ranks: each holds a part of the tokens, and in attention a part of the heads.

Knows: how tokens and heads change places (Ulysses, arXiv:2309.14509).
Does not know: models, or what attention computes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from areal_torch.layout import check_divides


@frozen(eq=False)
class ContextRanks:
    """The ranks that share every sequence of a batch. Each holds a run of tokens, as many as the others."""

    group: dist.ProcessGroup

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return self.group.size()

    def part(self, num_tokens: int) -> slice:
        """Return which of the tokens, a multiple of `size`, this rank holds."""
        count = num_tokens // self.size
        return slice(self.group.rank() * count, (self.group.rank() + 1) * count)

    def to_heads(self, tensor: Tensor) -> Tensor:
        """Give up heads for tokens: [H, T / c, D] -> [H / c, T, D]. Collective, with gradient."""
        result: Tensor = _Exchange.apply(tensor, self.group, True)  # type: ignore[no-untyped-call]
        return result

    def to_tokens(self, tensor: Tensor) -> Tensor:
        """Give up tokens for heads: [T, H / c, D] -> [T / c, H, D]. Collective, with gradient."""
        swapped = tensor.transpose(0, 1)
        result: Tensor = _Exchange.apply(swapped, self.group, False)  # type: ignore[no-untyped-call]
        return result.transpose(0, 1)

    def spread_heads(self, tensor: Tensor) -> Tensor:
        """Repeat key or value heads [K, T, D] until every rank can have one of each group of query heads."""
        if tensor.shape[0] % self.size == 0:
            return tensor
        return tensor.repeat_interleave(self.size // tensor.shape[0], 0)

    def total(self, column: Tensor) -> Tensor:
        """Add columns [T] of which each rank filled its own tokens; the loss of the sum is every rank's own."""
        result: Tensor = _Total.apply(column, self.group)  # type: ignore[no-untyped-call]
        return result


def check_context(degree: int, query_heads: int, kv_heads: int) -> None:
    """Refuse a degree that cannot share the heads.

    Raises:
        LayoutError: query heads are no multiple of it, or key heads neither a multiple nor a divisor.
    """
    check_divides("c", degree, query_heads, "attention heads")
    if degree % kv_heads:
        check_divides("c", degree, kv_heads, "key and value heads")


class _Exchange(torch.autograd.Function):
    """The gradient of an exchange is the exchange back. Any: autograd contexts are untyped."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, to_heads: bool) -> Tensor:
        ctx.group, ctx.to_heads = group, to_heads
        return _exchange(tensor, group, to_heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _exchange(grads[0], ctx.group, not ctx.to_heads), None, None


def _exchange(tensor: Tensor, group: dist.ProcessGroup, to_heads: bool) -> Tensor:
    """Cut along heads and join along tokens, or the other way round; rank r's piece of either is the r-th."""
    size = group.size()
    heads, tokens, width = tensor.shape
    if to_heads:
        sent = tensor.contiguous()  # the r-th run of heads goes to rank r
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        pieces = received.view(size, heads // size, tokens, width)
        return pieces.transpose(0, 1).reshape(heads // size, size * tokens, width)
    sent = tensor.reshape(heads, size, tokens // size, width).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received.view(size * heads, tokens // size, width)


class _Total(torch.autograd.Function):
    """A sum over ranks whose result every rank uses in the same way, so each keeps the gradient it has."""

    @staticmethod
    def forward(ctx: Any, column: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = column.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
