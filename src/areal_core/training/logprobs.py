"""Log-probs and entropy of given tokens from hidden states, without holding all logits at once.

Knows: one linear head, rows in chunks, the closed-form gradient.
Does not know: sequences; row i of `hidden` predicts `targets[i]`.
"""

from __future__ import annotations

from typing import Any

import torch
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
    chunk_elements: int = CHUNK_ELEMENTS,
    keep_elements: int = KEEP_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy in nats of softmax((hidden @ weight.T + bias) / temperature).

    Args:
        hidden: [R, D]; weight: [V, D] of the same dtype; bias: [V] or None; targets: int64 [R].
        with_entropy: False saves three passes over the logits; the entropy returned is then 0.

    Returns:
        Two float32 [R] tensors with gradients to hidden, weight and bias.
    """
    rows = max(1, chunk_elements // weight.shape[0])
    keep = hidden.shape[0] * weight.shape[0] <= keep_elements
    logprobs, entropy = _HeadLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, rows, keep, with_entropy
    )
    return logprobs, entropy


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
    ) -> tuple[Tensor, Tensor]:
        parts = [_log_softmax(chunk, weight, bias, temperature) for chunk in torch.split(hidden, rows)] if keep else []
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropy = torch.zeros_like(logprobs)
        for number, (chunk, target, logp_out, entropy_out) in enumerate(
            zip(
                torch.split(hidden, rows),
                torch.split(targets, rows),
                torch.split(logprobs, rows),
                torch.split(entropy, rows),
                strict=True,
            )
        ):
            log_p = parts[number] if keep else _log_softmax(chunk, weight, bias, temperature)
            logp_out.copy_(log_p.gather(1, target[:, None]).squeeze(1))
            if with_entropy:
                entropy_out.copy_(_entropy(log_p))
        ctx.save_for_backward(hidden, weight, bias, targets, *parts)
        ctx.settings = temperature, rows, keep, with_entropy
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, *parts = ctx.saved_tensors
        temperature, rows, keep, with_entropy = ctx.settings
        grad_logprobs, grad_entropy = grads
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        chunks = zip(
            torch.split(hidden, rows),
            torch.split(targets, rows),
            torch.split(grad_logprobs, rows),
            torch.split(grad_entropy, rows),
            torch.split(grad_hidden, rows),
            strict=True,
        )
        for number, (chunk, target, g_logp, g_entropy, out) in enumerate(chunks):
            log_p = parts[number] if keep else _log_softmax(chunk, weight, bias, temperature)
            p = log_p.exp()
            if with_entropy:
                grad_z = p * -(g_logp[:, None] + g_entropy[:, None] * (log_p + _entropy(log_p)[:, None]))
            else:
                grad_z = p.mul_(-g_logp[:, None])
            grad_z.scatter_add_(1, target[:, None], g_logp[:, None])
            grad_z /= temperature
            if grad_bias is not None:
                grad_bias += grad_z.sum(0)
            grad_z = grad_z.to(hidden.dtype)
            torch.mm(grad_z, weight, out=out)
            if grad_z.dtype is torch.float32:
                grad_weight.addmm_(grad_z.T, chunk)  # in place: a vocabulary times a hidden size is not small
            else:
                grad_weight += grad_z.T @ chunk
        return (
            grad_hidden,
            grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(weight.dtype),
            None,
            None,
            None,
            None,
            None,
        )


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    if temperature != 1.0:
        logits = logits / temperature
    return logits.log_softmax(-1).clamp_(min=torch.finfo(torch.float32).min)  # so that 0 log 0 is 0 and not nan


def _entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum(-1)
