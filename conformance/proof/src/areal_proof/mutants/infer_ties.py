"""Generators whose greedy choice among tokens that tie goes by who is beside.

Knows: where the reference generator turns logits into tokens.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_proof.mutants.rows import breaking, put, row, then
from areal_reference.infer import loop
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.sampling import RowSampling, distribution_logits, sample

breaks = breaking("infer/reference", ReferenceInferenceEngine)


def _taking(best: Tensor, logits: Tensor, rows: RowSampling) -> tuple[Tensor, Tensor]:
    """Draw as ever, but take these tokens for greedy rows."""
    tokens, _ = sample(logits, rows)
    tokens = torch.where(torch.from_numpy(rows.greedy), best, tokens)
    return tokens, distribution_logits(logits, rows).log_softmax(-1).gather(1, tokens[:, None])[:, 0]


def _last(logits: Tensor, rows: RowSampling) -> tuple[Tensor, Tensor]:
    """Take the last of tokens that tie."""
    best = logits.shape[1] - 1 - distribution_logits(logits, rows).flip(-1).argmax(-1)
    return _taking(best, logits, rows)


def _by_logits(logits: Tensor, rows: RowSampling) -> tuple[Tensor, Tensor]:
    """Take the best logit, which need not be the first of the best probabilities."""
    return _taking(distribution_logits(logits, rows).argmax(-1), logits, rows)


class _LastInCompany(loop.GenerationLoop):
    __slots__ = ()

    def _drawn(self, work: Any) -> loop.Drawn:
        with put(loop, sample=_last if self.rows.count > 1 else sample):
            return super()._drawn(work)


class _LogitsWhereAllAreGreedy(loop.GenerationLoop):
    __slots__ = ()

    def _drawn(self, work: Any) -> loop.Drawn:
        greedy = not any(ticket.request.sampling.temperature for ticket in self.rows.tickets)
        with put(loop, sample=_by_logits if greedy else sample):
            return super()._drawn(work)


ROWS = breaks.rows(
    row("LastOfTiesInCompany", "Takes the first of tokens that tie alone, and the last beside other requests.",
        "infer.concurrent.ties", start=then(lambda self: setattr(self.running.loop, "__class__", _LastInCompany))),
    row("BestLogitAmongGreedy", "Takes the best logit where all are greedy, and the best probability beside others.",
        "infer.deterministic.ties",
        start=then(lambda self: setattr(self.running.loop, "__class__", _LogitsWhereAllAreGreedy))),
)  # fmt: skip
