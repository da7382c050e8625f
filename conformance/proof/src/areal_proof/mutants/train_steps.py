"""Trainers that cut, normalise or report wrongly, or make steps they must not make.

Knows: what each does instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, Sum, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, given, gives, row, then
from areal_proof.mutants.train_parts import Columns, OtherObjective, Through, replace, replace_model
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
breaks_other_objective = breaking(ENGINE, OtherObjective, part=("through", Through))


@breaks("train_step", "train.step.gradient_masks", "train.step.budget", "train.step.normalizer", incident="verl#7917",
        row="average-is-average")  # fmt: skip
def MeanOverMicrobatches(original: Original, batch: Batch, objective: Objective) -> Any:
    """Divides by the number of micro-batches once more."""
    calls: list[Batch] = []

    class Counting(Through):
        def normalizer(self, part: Batch) -> Tensor:
            calls.append(part)
            return self.inner.normalizer(part)

        def loss(self, columns: Mapping[str, Tensor], part: Batch, normalizer: Tensor) -> Any:
            return self.inner.loss(columns, part, normalizer * len(calls))

    return original(batch, Counting(objective))


@mutant(ENGINE, killers=("train.step.sequences", "train.step.whole_sequences"))
class TableOfOtherRows(ReferenceTrainEngine):
    """Sorts the tokens of its micro-batches and forgets the table of sequences."""

    class _Through(Through):
        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            flipped = {str(name): column.flip(0) for name, column in batch.sequences.items()}
            return self.inner.loss(columns, batch.with_sequences(**flipped), normalizer)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return super().train_step(batch, self._Through(objective))


@breaks_other_objective("loss", "train.step.off_mask")
def MultipliesByMask(self: Through, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
    """Masks by multiplication, so that what is not finite off the mask is not finite everywhere."""
    loss, metrics = self.inner.loss(columns, batch, normalizer)
    return loss + (batch.tokens["advantages"] * ~batch.tokens["loss_mask"]).sum() * loss * 0.0, metrics


@mutant(ENGINE, killers=("train.step.whole_sequences", "train.step.sequences"))
class LongSequencesInPieces(ReferenceTrainEngine):
    """Hands an objective long sequences in two pieces."""

    class _Through(Through):
        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            if int(batch.lengths.max()) < 5:
                return self.inner.loss(columns, batch, normalizer)
            rows = [row for row in range(batch.num_sequences) for _ in range(2 if int(batch.lengths[row]) >= 5 else 1)]
            lengths: list[int] = []
            for length in batch.lengths.tolist():
                lengths += [4, length - 4] if length >= 5 else [length]
            sequences = {str(name): column[rows] for name, column in batch.sequences.items()}
            tokens = {str(name): column for name, column in batch.tokens.items()}
            return self.inner.loss(columns, Batch.of(tokens, sequences, torch.tensor(lengths)), normalizer)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return super().train_step(batch, self._Through(objective))


OTHER_OBJECTIVE_ROWS = breaks_other_objective.rows(
    row("LocalNormalizer", "Divides each micro-batch's loss by its own count of tokens.", "train.step.gradient_masks",
        "train.step.normalizer", "train.step.normalizer_given", row="average-is-average",
        loss=lambda self, columns, batch, normalizer: self.inner.loss(columns, batch,
            self.inner.normalizer(batch).to(normalizer.device).clamp(min=1e-09))),
    row("NormalizerRounded", "Rounds each micro-batch's share of the normaliser up to a whole number.",
        "train.step.normalizer", normalizer=lambda self, batch: self.inner.normalizer(batch).ceil()),
    row("NormalizerInSingle", "Hands the normaliser over in float32, one number in a list.",
        "train.step.normalizer_given",
        loss=lambda self, columns, batch, normalizer: self.inner.loss(columns, batch, normalizer.float())),
    row("EntropyDetached", "Hands the entropy over without gradient.", "train.step.entropy_gradient",
        "train.step.columns", "train.step.gradient",
        loss=lambda self, columns, batch, normalizer: self.inner.loss({str(n): c.detach() if n == Output.ENTROPY else c
            for n, c in columns.items()}, batch, normalizer)),
    row("ColumnsOfTheNeighbour", "Hands the log-probs of a micro-batch over one token late.", "train.step.columns",
        loss=lambda self, columns, batch, normalizer: self.inner.loss({str(n): c.roll(1) for n, c in columns.items()},
            batch, normalizer)),
)  # fmt: skip


@breaks("train_step", "train.step.metrics")
def LastMetricsWin(original: Original, batch: Batch, objective: Objective) -> Any:
    """Reports the metrics of the last micro-batch."""
    last: dict[str, Sum] = {}

    class Keeping(Through):
        def loss(self, columns: Mapping[str, Tensor], part: Batch, normalizer: Tensor) -> Any:
            loss, metrics = self.inner.loss(columns, part, normalizer)
            last.update(metrics)
            return loss, metrics

    return attrs.evolve(original(batch, Keeping(objective)), metrics=last)


@breaks("train_step", "train.packing.fills")
def OneSequenceEach(original: Original, self: ReferenceTrainEngine, batch: Batch) -> Any:
    """Runs every sequence in a micro-batch of its own."""
    assert self._trainer is not None
    whole = self._trainer
    longest = int(batch.lengths.max()) if batch.num_sequences else 1
    replace(self, limits=attrs.evolve(whole.limits, max_tokens=min(whole.limits.max_tokens, longest)))
    try:
        return original()
    finally:
        self._trainer = whole


@breaks("train_step", "train.step.version", row="version-spans")
def StepCountsVersion(original: Original, self: ReferenceTrainEngine) -> Any:
    """Counts the version itself."""
    self.version += 1
    return original()


@breaks("start", "train.step.deterministic", "train.forward.no_effect")
def NeverSeeded(original: Original) -> Any:
    """Leaves its generators where the engine before left them."""
    before = torch.get_rng_state()
    info = original()
    torch.set_rng_state(before)
    return info


@mutant(ENGINE, killers=("train.step.gradient_masks", "train.step.budget"))
class LastMicrobatchDropped(ReferenceTrainEngine):
    """Does not run the last micro-batch backward when there are several."""

    class _Model(Columns):
        calls = 0

        def backward(self, loss: Tensor, *, last: bool) -> None:
            self.calls += 1
            super().backward(loss * 0.0 if last and self.calls > 1 else loss, last=last)
            self.calls = 0 if last else self.calls

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        replace_model(self, self._Model)
        return info


ROWS = breaks.rows(
    row("CountsTrainedTokens", "Reports the tokens on the mask as the tokens of the batch.", "train.step.report",
        train_step=gives(num_tokens=lambda batch: int(batch.tokens["loss_mask"].sum()))),
    row("OneMicrobatchTold", "Reports one micro-batch, however many there were.", "train.step.report",
        train_step=gives(num_microbatches=1)),
    row("StepNormalisesAdvantages", "Writes the advantages back into the batch after use, smaller.",
        "train.step.leaves_batch", train_step=then(lambda batch: batch.tokens["advantages"].mul_(0.5))),
    row("SeedIgnored", "Seeds its generators with the same number whatever the spec says.", "train.step.deterministic",
        start=given(seed=1)),
    row("BudgetOffByOne", "Refuses a sequence of exactly the budget.", "train.step.too_long",
        forward=before(lambda self, batch: BatchError("a sequence is too long",
            why="it has as many tokens as the budget") if batch.num_sequences
            and int(batch.lengths.max()) >= self._trainer.limits.max_tokens else None)),
)  # fmt: skip


@breaks("train_step", "train.step.order", "train.step.gradient")
def FirstSequenceWeighsMore(original: Original, batch: Batch, objective: Objective) -> Any:
    """Multiplies the advantages of the first sequence by a hundred and one hundredths."""
    first = torch.where(batch.sequence_ids == 0, 1.01, 1.0)
    return original(batch.with_tokens(advantages=batch.tokens["advantages"] * first), objective)
