"""Log-probs and entropy of given tokens from hidden states, without holding all logits at once.

Knows: one linear head, also one whose rows several ranks share; rows in chunks, the closed-form gradient.
Does not know: sequences; row i of `hidden` predicts `targets[i]`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Logits per chunk: 64 MiB of float32."""
KEEP_ELEMENTS = 1 << 25
"""Logits kept for the backward pass when all of them are fewer than this; above, they are computed again."""


def logprobs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    *,
    with_entropy: bool = True,
    chunk_elements: int | None = None,
    keep_elements: int | None = None,
    vocabulary: dist.ProcessGroup | None = None,
    share: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy in nats of softmax((hidden @ weight.T + bias) / temperature).

    Args:
        hidden: [R, D]; weight: [V, D] of the same dtype; bias: [V] or None; targets: int64 [R], or [R, K] for several.
        with_entropy: False saves two passes over the logits; the entropy returned is then 0. Its gradient takes a
            third, only where something was made of it.
        chunk_elements, keep_elements: CHUNK_ELEMENTS and KEEP_ELEMENTS unless given.
        vocabulary: the ranks that share weight and bias, the first the first V rows; the rest is equal on them.
            The gradient to hidden is whole on each. Collective.
        share: where they hold unlike many rows, the most that one holds: rank r begins at row r * share.

    Returns:
        Two float32 tensors, of the shape of targets and [R], with gradients to hidden, weight and bias.
    """
    share = share or weight.shape[0]
    rows = _rows(chunk_elements, share)  # of the largest share: ranks must make as many chunks
    keep = hidden.shape[0] * share <= (KEEP_ELEMENTS if keep_elements is None else keep_elements)
    own = (targets[:, None] if targets.ndim == 1 else targets) - (vocabulary.rank() * share if vocabulary else 0)
    logprobs, entropy = _HeadLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, own, temperature, rows, keep, with_entropy, vocabulary
    )
    return logprobs.view(targets.shape), entropy


@torch.no_grad()
def most_probable(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    *,
    chunk_elements: int | None = None,
    vocabulary: dist.ProcessGroup | None = None,
    share: int = 0,
) -> Tensor:
    """Return the `count` most probable targets of each row, int64 [R, count], the most probable first.

    Arguments are those of `logprobs_and_entropy`; of targets that are equally probable any may come first.
    """
    share = share or weight.shape[0]
    rows = _rows(chunk_elements, share)
    found = [hidden.new_empty((0, count), dtype=torch.int64)]
    for chunk in torch.split(hidden, rows):
        logits, ids = _logits(chunk, weight, bias, 1.0).topk(min(count, weight.shape[0]))
        if vocabulary is not None:
            logits, ids = _of_all(logits, ids + vocabulary.rank() * share, min(count, share), vocabulary)
        found.append(ids.gather(1, logits.topk(count).indices))
    return torch.cat(found)


def _rows(chunk_elements: int | None, share: int) -> int:
    return max(1, (CHUNK_ELEMENTS if chunk_elements is None else chunk_elements) // share)


def _of_all(logits: Tensor, ids: Tensor, width: int, vocabulary: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return what every rank found, beside one another; one with fewer than `width` rows fills up with nothing."""
    lacking = width - logits.shape[1]
    logits = torch.nn.functional.pad(logits, (0, lacking), value=-torch.inf)
    ids = torch.nn.functional.pad(ids, (0, lacking))
    every = [[torch.empty_like(each) for _ in range(vocabulary.size())] for each in (logits, ids)]
    for each, mine in zip(every, (logits, ids), strict=True):
        dist.all_gather(each, mine.contiguous(), group=vocabulary)
    return torch.cat(every[0], 1), torch.cat(every[1], 1)


class _HeadLogProbs(torch.autograd.Function):
    """z = logits / temperature, p = softmax(z), H = -sum p log p.

    d logp(y) / dz = onehot(y) - p        d H / dz = -p (log p + H)
    """

    @staticmethod
    def forward(
        ctx: Any,  # Any: autograd contexts are untyped
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        rows: int,
        keep: bool,
        with_entropy: bool,
        vocabulary: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        columns = torch.zeros(hidden.shape[0], targets.shape[1] + 1, dtype=torch.float32, device=hidden.device)
        logprobs, entropy = columns[:, :-1], columns[:, -1]
        is_own = (targets >= 0) & (targets < weight.shape[0])  # of ranks that share the rows one has the target's
        own = targets * is_own
        parts, shifts = [], []
        for chunk, target, mine, logp_out, entropy_out in zip(
            *(torch.split(tensor, rows) for tensor in (hidden, own, is_own, logprobs, entropy)), strict=True
        ):
            logits = _logits(chunk, weight, bias, temperature)
            shift = None if vocabulary is None else _log_normalizer(logits, vocabulary)
            log_p = _log_p(logits, shift)
            logp_out.copy_(log_p.gather(1, target) * mine)
            if with_entropy:
                entropy_out.copy_(_entropy(log_p))
            shifts.append(shift)
            if keep:
                parts.append(log_p)
        if vocabulary is not None:
            dist.all_reduce(columns, group=vocabulary)
        ctx.save_for_backward(hidden, weight, bias, own, is_own, entropy, *(parts if keep else shifts))
        ctx.set_materialize_grads(False)
        ctx.settings = temperature, rows, keep, vocabulary
        return logprobs.clone(memory_format=torch.contiguous_format), entropy.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, own, is_own, entropy, *kept = ctx.saved_tensors
        temperature, rows, keep, vocabulary = ctx.settings
        with_entropy = grads[1] is not None
        grad_logprobs = entropy.new_zeros(own.shape) if grads[0] is None else grads[0]
        grad_entropy = entropy.new_zeros(entropy.shape) if grads[1] is None else grads[1]
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        split = (torch.split(t, rows) for t in (hidden, own, is_own, grad_logprobs, grad_entropy, entropy, grad_hidden))
        for saved, chunk, target, mine, g_logp, g_entropy, h, out in zip(kept, *split, strict=True):
            log_p = saved if keep else _log_p(_logits(chunk, weight, bias, temperature), saved)
            p = log_p.exp()
            if with_entropy:
                grad_z = p * -(g_logp.sum(1, keepdim=True) + g_entropy[:, None] * (log_p + h[:, None]))
            else:
                grad_z = p.mul_(-g_logp.sum(1, keepdim=True))
            grad_z.scatter_add_(1, target, g_logp * mine)
            grad_z /= temperature
            if grad_bias is not None:
                grad_bias += grad_z.sum(0)
            grad_z = grad_z.to(hidden.dtype)
            torch.mm(grad_z, weight, out=out)
            if grad_z.dtype is torch.float32:
                grad_weight.addmm_(grad_z.T, chunk)  # in place: a vocabulary times a hidden size is not small
            else:
                grad_weight += grad_z.T @ chunk
        if vocabulary is not None:
            dist.all_reduce(grad_hidden, group=vocabulary)
        return (
            grad_hidden,
            grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(weight.dtype),
            *(None,) * 6,
        )


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    return logits / temperature if temperature != 1.0 else logits


def _log_normalizer(logits: Tensor, vocabulary: dist.ProcessGroup) -> Tensor:
    """Return what is taken off the logits of each row, in two steps that keep their digits: [R, 2]."""
    highest = logits.amax(-1)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=vocabulary)
    total = (logits - highest[:, None]).exp_().sum(-1)
    dist.all_reduce(total, group=vocabulary)
    return torch.stack([highest, total.log()], -1)


def _log_p(logits: Tensor, shift: Tensor | None) -> Tensor:
    """Normalise logits, in place where several ranks told by how much."""
    log_p = logits.log_softmax(-1) if shift is None else logits.sub_(shift[:, :1]).sub_(shift[:, 1:])
    return log_p.clamp_(min=torch.finfo(torch.float32).min)  # so that 0 log 0 is 0 and not nan


def _entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum(-1)
