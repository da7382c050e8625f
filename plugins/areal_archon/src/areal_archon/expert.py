"""Experts over several ranks: rows travel to the rank that has their expert, and back (arXiv:2006.16668).

Knows: rows sorted by expert, uneven exchanges.
Does not know: routers, or what an expert computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

Compute = Callable[[Tensor, list[int]], Tensor]
"""Rows sorted by expert, and how many each has -> as many rows."""


@frozen(eq=False)
class ExpertRanks:
    """The ranks that share the experts, each as many as the others; `group` is None when one has all."""

    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """Return this rank's number among them."""
        return 0 if self.group is None else self.group.rank()

    def compute(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Return what the experts make of rows [R, D], sorted by expert, `counts` [E] of each. Collective.

        Every rank computes, also one that is sent nothing: its experts take part in the backward pass.
        """
        if self.group is None:
            return compute(rows, counts.tolist())
        given = torch.empty_like(counts)
        dist.all_to_all_single(given, counts, group=self.group)
        sent, received = counts.view(self.size, -1), given.view(self.size, -1)  # [rank, expert of that rank]
        leaving, coming = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = _exchange(rows, leaving, coming, self.group)
        order = _by_expert(received)
        computed = compute(arrived[order], received.sum(0).tolist())
        return _exchange(computed[order.argsort()], coming, leaving, self.group)


def _by_expert(counts: Tensor) -> Tensor:
    """Return the order that sorts rows which came rank by rank, of each rank expert by expert, by expert alone."""
    expert = torch.arange(counts.shape[1], device=counts.device).expand_as(counts).flatten()
    return expert.repeat_interleave(counts.flatten()).argsort(stable=True)


def _exchange(rows: Tensor, leaving: list[int], coming: list[int], group: dist.ProcessGroup) -> Tensor:
    result: Tensor = _Exchange.apply(rows, leaving, coming, group)  # type: ignore[no-untyped-call]
    return result


class _Exchange(torch.autograd.Function):
    """The gradient of an exchange is the exchange back. Any: autograd contexts are untyped."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, leaving: list[int], coming: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.leaving, ctx.coming, ctx.group = leaving, coming, group
        return _sent(rows, leaving, coming, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _sent(grads[0], ctx.coming, ctx.leaving, ctx.group), None, None, None


def _sent(rows: Tensor, leaving: list[int], coming: list[int], group: dist.ProcessGroup) -> Tensor:
    arrived = rows.new_empty(sum(coming), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), coming, leaving, group=group)
    return arrived
