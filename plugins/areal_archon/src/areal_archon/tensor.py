"""Layers cut over tensor ranks: what is exchanged where a cut part begins and ends (arXiv:1909.08053, 2205.05198).

Knows: activations [T, D], whole on every rank or, between the cut parts, a run of tokens each (`sequence`).
Does not know: models, or which dimension of which parameter is cut (`areal_archon.models.names`).

After `enter` every rank has all tokens and its own part of heads, columns or experts, and every gradient is a
part of the whole: `enter` adds them up, and a parameter that is not cut goes through `shared` there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor
from torch.nn.functional import pad

from areal_torch.layout import share_of

# Any: torch renamed both in 2.13 and warns of the names that 2.11 has.
_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@frozen(eq=False)
class TensorRanks:
    """The ranks that share every layer; `group` is None when there is one.

    With `sequence` each keeps, between the cut parts, only its run of tokens: norms and residuals cost a part of
    the memory. The last run may be shorter; it is filled up with zeros, which nothing reads.
    """

    group: dist.ProcessGroup | None = None
    sequence: bool = False

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """Return this rank's number among them."""
        return 0 if self.group is None else self.group.rank()

    def share(self, size: int) -> range:
        """Return which of `size` rows this rank holds, where ranks need not hold as many."""
        return share_of(size, self.size, self.rank)

    def enter(self, x: Tensor, num_tokens: int) -> Tensor:
        """Begin a cut part: give every rank all tokens. Backward adds the ranks' gradients."""
        if self.group is None:
            return x
        if self.sequence:
            return _applied(_Gather, x, num_tokens, self.group, True)
        return _applied(_Copy, x, self.group)

    def leave(self, part: Tensor) -> Tensor:
        """End a cut part: add up what the ranks have of each of all tokens."""
        if self.group is None:
            return part
        return _applied(_Scatter if self.sequence else _Add, part, self.group)

    def whole(self, x: Tensor, num_tokens: int) -> Tensor:
        """Give every rank all tokens at the end of the layers, where each computes the same with them."""
        if self.group is None or not self.sequence:
            return x
        return _applied(_Gather, x, num_tokens, self.group, False)

    def run(self, x: Tensor) -> Tensor:
        """Keep this rank's run of tokens that every rank has: the opposite of `whole`."""
        if self.group is None or not self.sequence:
            return x
        return _applied(_Run, x, self.group)

    def shared(self, parameter: Tensor) -> Tensor:
        """Return an uncut parameter for use in a cut part, where each rank finds a part of its gradient."""
        return parameter if self.group is None else _applied(_Copy, parameter, self.group)

    def between(self, parameter: Tensor) -> Tensor:
        """Return an uncut parameter for use between cut parts: each rank has some tokens there, or all."""
        return self.shared(parameter) if self.sequence else parameter


def _applied(function: Any, *arguments: Any) -> Tensor:  # Any: autograd functions are untyped
    result: Tensor = function.apply(*arguments)
    return result


def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)  # a checkpoint may have kept x
    dist.all_reduce(total, group=group)
    return total


def _gather(x: Tensor, num_tokens: int, group: dist.ProcessGroup) -> Tensor:
    everyone = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
    _ALL_GATHER(everyone, x.contiguous(), group=group)
    return everyone[:num_tokens]


def _run(num_tokens: int, group: dist.ProcessGroup) -> int:
    return -(-num_tokens // group.size())


def _filled(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return pad(x, (0, 0, 0, _run(x.shape[0], group) * group.size() - x.shape[0])).contiguous()


def _own_run(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _filled(x, group).chunk(group.size())[group.rank()].contiguous()


def _scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    mine = x.new_empty(_run(x.shape[0], group), *x.shape[1:])
    _REDUCE_SCATTER(mine, _filled(x, group), group=group)
    return mine


class _Copy(torch.autograd.Function):
    """Nothing forward, a sum over ranks backward. Any, here and below: autograd contexts are untyped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum(grads[0], ctx.group), None


class _Add(torch.autograd.Function):
    """A sum over ranks forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Scatter(torch.autograd.Function):
    """A sum over ranks of which each keeps its run of tokens; backward, all runs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.num_tokens = group, x.shape[0]
        return _scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.num_tokens, ctx.group), None


class _Run(torch.autograd.Function):
    """This rank's run of tokens; backward, all runs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.num_tokens = group, x.shape[0]
        return _own_run(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.num_tokens, ctx.group), None


class _Gather(torch.autograd.Function):
    """All runs of tokens; backward, this rank's run of the gradient, added over ranks or equal on them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, num_tokens: int, group: dist.ProcessGroup, added: bool) -> Tensor:
        ctx.group, ctx.added = group, added
        return _gather(x, num_tokens, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad, group = grads[0], ctx.group
        if ctx.added:
            return _scatter(grad, group), None, None, None
        return _own_run(grad, group), None, None, None
