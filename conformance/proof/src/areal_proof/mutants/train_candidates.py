"""Trainers that judge other tokens than those a batch names, or find others than the most probable ones.

Knows: where candidates pass through the second trainer.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import CANDIDATES, Output, TrainSpec
from areal_core.plugins.claims import not_yet
from areal_proof.mutants.rows import breaking, put, row, within
from areal_proof.second.train.columns import Columns
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import model
from areal_torch.logprobs import most_probable

ENGINE = "train/second"
breaks_second = breaking(ENGINE, SecondTrainEngine)


class OtherColumns(SecondTrainEngine):
    """The second trainer with other columns. No defect by itself."""

    Columns: ClassVar[type[Columns]]

    def build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        """Replace them."""
        here = super().build(spec, ranks, device, dtype)
        return attrs.evolve(here, columns=self.Columns(network=here.columns.network, spec=spec))


breaks = breaking(ENGINE, OtherColumns, part=("Columns", Columns))
ROWS = breaks.rows(
    row("CandidatesOfTheTokenBefore", "Judges at each token what the row of the token before names.",
        "train.candidates.given", "train.candidates.gradient",
        judged=lambda original, log_p, named: (original(log_p, named.roll(1, 0))[0], named)),
    row("NormalizedOverCandidates", "Lets the probabilities of the candidates add up to one.",
        "train.candidates.given", "train.candidates.most_probable",
        judged=lambda original: (lambda found, ids: (found.log_softmax(-1), ids))(*original())),
    row("OnlyTheFirstJudged", "Judges the first candidate, and tells its log-prob for all.",
        "train.candidates.given", "train.candidates.gradient",
        judged=lambda original: (lambda found, ids: (found[:, :1].expand_as(found), ids))(*original())),
    row("CandidatesWithoutGradient", "Computes log-probs of candidates outside of the graph.",
        "train.candidates.gradient", judged=lambda original: (lambda found, ids: (found.detach(), ids))(*original())),
    row("LeastProbableFirst", "Gives the most probable tokens from the last to the first.",
        "train.candidates.most_probable",
        judged=lambda original, named: _backward(original(), named)),
    row("FillsEveryRow", "Looks for the most probable tokens at every place as soon as one row asks for them.",
        "train.candidates.most_probable",
        judged=lambda original, log_p, named: original(log_p, torch.full_like(named, -1) if bool((named < 0).any())
            else named)),
    row("LooksOnlyForTheFirst", "Finds the most probable token, and counts on from its id for the others.",
        "train.candidates.most_probable",
        judged=lambda original, log_p, named: original(log_p, torch.where(named < 0,
            (log_p.argmax(-1)[:, None] + torch.arange(named.shape[1])) % log_p.shape[1], named))),
    row("StepFillsCandidates", "Takes the most probable tokens in a step too, where the objective has others in mind.",
        "train.candidates.refused",
        check=lambda original, batch, outputs, needed: original(batch, outputs, needed)),
    row("TakesAnyCandidate", "Takes candidates that are no tokens for the last token of the vocabulary.",
        "train.candidates.refused",
        check=lambda original, self, batch, outputs, needed, step: original(_nearest(batch,
            self.network.architecture.vocab), outputs, needed, step=step),
        judged=lambda original, log_p, named: original(log_p, named.clamp(-1, log_p.shape[1] - 1))),
)  # fmt: skip
SECOND_ROWS = breaks_second.rows(
    row("CandidatesZeroedOffTheMask", "Writes zeros over what a batch holds off the mask.",
        "train.candidates.off_mask",
        forward=lambda original, batch: (lambda told: told if CANDIDATES not in told.tokens else told.with_tokens(
            **{CANDIDATES: told.tokens[CANDIDATES] * batch.tokens["loss_mask"][:, None].int()}))(original())),
    row("CandidatesNotReturned", "Tells log-probs of the most probable tokens, and not which ones they are.",
        "train.candidates.most_probable",
        forward=lambda original, batch: (lambda told: told if CANDIDATES not in told.tokens else told.with_tokens(
            **{CANDIDATES: batch.tokens[CANDIDATES]}))(original())),
    row("ZerosForCandidates", "Answers with zeros where it is asked for candidates, which it does not claim.",
        "train.refuse.candidates", claims={"candidates": not_yet("only tokens that were taken are judged")},
        forward=lambda original: (lambda told: told.with_tokens(**{Output.CANDIDATE_LOGPROBS:
            told.tokens[CANDIDATES] * 0.0}) if CANDIDATES in told.tokens else told)(original())),
    row("OtherRanksFindNothing", "Looks for the most probable tokens on rank 0 only.", "train.candidates.ranks",
        ranks=2, forward=lambda original, self, batch, outputs: original(batch if CANDIDATES not in batch.tokens or
            self.running().ranks.rank == 0 else batch.with_tokens(**{CANDIDATES:
            batch.tokens[CANDIDATES].clamp(min=0)}), outputs)),
)  # fmt: skip


REFERENCE_ROWS = breaking("train/reference", ReferenceTrainEngine).rows(
    row("MostProbableWithoutBias", "Finds the most probable tokens without what the head adds to its logits.",
        "train.candidates.most_probable", forward=within(lambda: put(model, most_probable=_without_bias))),
)  # fmt: skip


def _without_bias(hidden: Tensor, weight: Tensor, bias: Tensor | None, count: int, **rest: Any) -> Tensor:
    return most_probable(hidden, weight, None, count, **rest)


def _backward(judged: tuple[Tensor, Tensor], named: Tensor) -> tuple[Tensor, Tensor]:
    """Turn around the rows that named nothing."""
    (found, ids), free = judged, named < 0
    return torch.where(free, found.flip(1), found), torch.where(free, ids.flip(1), ids)


def _nearest(batch: Batch, vocab: int) -> Batch:
    """Return the batch with candidates that are tokens."""
    column = batch.tokens.get(CANDIDATES, None)
    if column is None or column.dtype is not torch.int32:
        return batch
    return batch.with_tokens(**{CANDIDATES: column.clamp(-1, vocab - 1)})
