"""The reverse KL to a teacher over its most probable tokens, with what is left as one token more.

    D_t = sum over the teacher's top k of p (log p - log q), + r (log r - log s)

with p the student's and q the teacher's probability of a token, r and s what each leaves to all others. It is the KL of
two distributions over k + 1 events, so it is 0 only where they agree, at most the KL over the whole vocabulary
(data-processing inequality), and that KL itself where k is the vocabulary. Its gradient is exact: no token is sampled.

Knows: log-probs of both.
Does not know: who the teacher is (`top_k`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import CANDIDATES, Output, Sum

TEACHER = "teacher_logprobs"
"""Token column, float32 [T, K]: what the teacher gives to the candidates."""
LEAST = 1e-6
"""What is left is taken to be at least this: beyond it single precision knows nothing of 1 - sum."""


class DivergenceObjective:
    """Minimise the mean over generated tokens, in nats."""

    @property
    def outputs(self) -> frozenset[Output]:
        """Ask for the student's log-probs of the candidates."""
        return frozenset({Output.CANDIDATE_LOGPROBS})

    @property
    def columns(self) -> frozenset[str]:
        """Name what the teacher told."""
        return frozenset({CANDIDATES, TEACHER})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count generated tokens, float64 scalar."""
        return judged(batch).sum().double()

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return this micro-batch's share of the loss, and the distance to the teacher."""
        where = judged(batch)
        teacher = batch.tokens[TEACHER].to(columns[Output.CANDIDATE_LOGPROBS].dtype)
        distance = torch.where(where, divergence(columns[Output.CANDIDATE_LOGPROBS], teacher), 0.0)
        amount, tokens = distance.sum(), float(where.sum())
        mass = torch.where(where, teacher.exp().sum(-1), 0.0).sum()
        told = {
            "loss": Sum(value=float(amount.detach()), weight=tokens),
            "reference_kl": Sum(value=float(amount.detach()), weight=tokens),
            "teacher_mass": Sum(value=float(mass), weight=tokens),
        }
        return amount / normalizer.to(amount.dtype), told


def judged(batch: Batch) -> Tensor:
    """Return the tokens whose distributions are compared, bool [T]: generated, and not the first of a sequence."""
    where: Tensor = batch.tokens["loss_mask"] & (batch.positions > 0)
    return where


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return D_t in nats, [T], of log-probs [T, K] of the same K tokens."""
    left, kept = (torch.log((1.0 - each.exp().sum(-1)).clamp_min(LEAST)) for each in (student, teacher))
    return (student.exp() * (student - teacher)).sum(-1) + left.exp() * (left - kept)
