"""Trainers that cut, normalise or report wrongly, or meet what cannot be trained in the wrong way.

Knows: what each does instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, BatchError
from areal_core.contract.train import Objective, Output, Sum, TrainReport
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, given, gives, row, then, within
from areal_proof.mutants.train_optimizer import OtherOptimizer
from areal_proof.mutants.train_parts import Columns, OtherModel, OtherObjective, Through, hugging_face, replaced
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer
from areal_torch.trainer import running

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


@breaks_other_objective("loss", "train.step.off_mask")
def MultipliesByMask(self: Through, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
    """Masks by multiplication, so that what is not finite off the mask is not finite everywhere."""
    loss, metrics = self.inner.loss(columns, batch, normalizer)
    return loss + (batch.tokens["advantages"] * ~batch.tokens["loss_mask"]).sum() * loss * 0.0, metrics


@breaks_other_objective("loss", "train.step.constant_share")
def ConstantsRefused(self: Through, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
    """Cannot run a share of the loss backward that depends on nothing."""
    loss, metrics = self.inner.loss(columns, batch, normalizer)
    if not loss.requires_grad:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    return loss, metrics


@breaks_other_objective("loss", "train.step.whole_sequences", "train.step.sequences")
def LongSequencesInPieces(self: Through, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
    """Hands an objective long sequences in two pieces."""
    if int(batch.lengths.max()) < 5:
        return self.inner.loss(columns, batch, normalizer)
    rows = [row for row in range(batch.num_sequences) for _ in range(2 if int(batch.lengths[row]) >= 5 else 1)]
    lengths: list[int] = []
    for length in batch.lengths.tolist():
        lengths += [4, length - 4] if length >= 5 else [length]
    sequences = {str(name): column[rows] for name, column in batch.sequences.items()}
    tokens = {str(name): column for name, column in batch.tokens.items()}
    return self.inner.loss(columns, Batch.of(tokens, sequences, torch.tensor(lengths)), normalizer)


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
    row("TableOfOtherRows", "Sorts the tokens of its micro-batches and forgets the table of sequences.",
        "train.step.sequences", "train.step.whole_sequences",
        loss=lambda self, columns, batch, normalizer: self.inner.loss(columns,
            batch.with_sequences(**{str(name): column.flip(0) for name, column in batch.sequences.items()}),
            normalizer)),
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


@breaks("backward", "train.step.gradient_masks", "train.step.budget", calls=0, base=OtherModel, part=("kind", Columns))
def LastMicrobatchDropped(original: Original, self: Any, loss: Tensor, last: bool) -> None:
    """Does not run the last micro-batch backward when there are several."""
    self.calls += 1
    original(loss * 0.0 if last and self.calls > 1 else loss, last=last)
    self.calls = 0 if last else self.calls


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
            and int(batch.lengths.max()) >= self.trainer.limits.max_tokens else None)),
    row("LongSequencesCut", "Cuts sequences that do not fit to the length that does.", "train.step.too_long",
        incident="NeMo-RL#3599", row="trained-as-submitted",
        train_step=lambda original, self, batch, objective: original(_cut(self, batch), objective),
        forward=lambda original, self, batch, outputs: original(_cut(self, batch), outputs)),
    row("StepCountsVersion", "Counts the version itself.", "train.step.version", row="version-spans",
        train_step=before(lambda self: setattr(self, "version", self.version + 1))),
    row("PaddingTrained", "Trains the row of padding as what embeds it, which transformers does not.",
        "train.step.gradient", start=then(lambda self: setattr(hugging_face(self).get_input_embeddings(), "padding_idx",
            None))),
    row("NeverSeeded", "Leaves its generators where the engine before left them.", "train.step.deterministic",
        "train.forward.no_effect", start=within(lambda: torch.random.fork_rng(devices=()))),
    row("FirstSequenceWeighsMore", "Multiplies the advantages of the first sequence by a hundred and one hundredths.",
        "train.step.order", "train.step.gradient",
        train_step=lambda original, batch, objective: original(batch.with_tokens(
            advantages=batch.tokens["advantages"] * torch.where(batch.sequence_ids == 0, 1.01, 1.0)), objective)),
    row("OneSequenceEach", "Runs every sequence in a micro-batch of its own.", "train.packing.fills",
        train_step=within(lambda self, batch: replaced(self, limits=attrs.evolve(self.trainer.limits,
            max_tokens=min(self.trainer.limits.max_tokens, max(batch.lengths.tolist(), default=1)))))),
)  # fmt: skip


breaks_other_optimizer = breaking(ENGINE, OtherOptimizer, part=("kind", Optimizer))


@breaks_other_optimizer("step", "train.step.not_finite", "train.step.not_finite_twice")
@torch.no_grad()
def StepsOnNan(original: Original, self: Optimizer, norm: float) -> Any:
    """Puts 0 in the place of what is not finite, and steps."""
    if math.isfinite(norm):
        return original()
    for parameter in self.parameters.values():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
    return original(0.0)


OPTIMIZER_ROWS = breaks_other_optimizer.rows(
    row("SkippedStepCounts", "Moves the schedule on for a step it skipped.", "train.step.not_finite",
        "train.machine.checkpoint",
        step=then(lambda self, result: setattr(self, "steps", self.steps + (not result)))),
    row("NormInHalf", "Skips steps whose norm half precision could not hold.", "train.step.overflow",
        step=lambda original, norm: original(math.inf if norm > 1000.0 else norm)),
)  # fmt: skip


@breaks_other_optimizer("step", "train.step.not_finite")
@torch.no_grad()
def SkippedStepDecays(original: Original, self: Optimizer) -> Any:
    """Lets the moments decay in a step it skips."""
    stepped = original()
    if not stepped:
        for moment in self.moments["exp_avg"].values():
            moment.mul_(self.spec.betas[0])
    return stepped


@breaks("train_step", "train.step.not_finite_twice", _skipped=False)
def SkippedTwiceTellsOnce(original: Original, self: Any) -> Any:
    """Says of a second step it skips in a row that it was made."""
    report = original()
    again, self._skipped = self._skipped and not report.stepped, not report.stepped
    return attrs.evolve(report, stepped=True) if again else report


def _cut(self: ReferenceTrainEngine, batch: Batch) -> Batch:
    """Return the batch with sequences as long as they may be."""
    assert self.trainer is not None
    limit = min(self.trainer.limits.max_tokens, self.trainer.limits.context_length)
    keep = batch.positions < limit
    tokens = {str(name): column[keep] for name, column in batch.tokens.items()}
    return Batch.of(tokens, {str(n): c for n, c in batch.sequences.items()}, batch.lengths.clamp(max=limit))


@breaks("train_step", "train.step.missing_column")
def MissingColumnIsZero(original: Original, batch: Batch, objective: Objective) -> Any:
    """Takes a column that is missing for zeros."""
    there = {str(name) for name in batch.tokens.keys()}  # noqa: SIM118
    zeros = {name: torch.zeros(batch.num_tokens) for name in objective.columns - there}
    return original(batch.with_tokens(**zeros), objective)


def _known(self: ReferenceTrainEngine, batch: Batch) -> Batch:
    vocabulary = running(self.trainer).limits.vocab_size
    return batch.with_tokens(input_ids=batch.tokens["input_ids"].clamp(0, vocabulary - 1))


STEP_FAULTS_ROWS = breaks.rows(
    row("SkippedNormHidden", "Reports a norm of 0 for a step it skipped.", "train.step.not_finite",
        train_step=after(lambda result: result if result.stepped else attrs.evolve(result, grad_norm=0.0))),
    row("NothingCountsAsOne",
        "Divides by 1 where nothing is trained, and steps: the weight decay is all that happens.",
        "train.step.nothing_trained", base=OtherObjective, part=("through", Through),
        normalizer=lambda self, batch: self.inner.normalizer(batch).clamp(min=1.0)),
    row("UnknownTokensClamped", "Takes a token it does not know for the nearest one it does.",
        "train.step.unknown_token",
        train_step=lambda original, self, batch, objective: original(_known(self, batch), objective),
        forward=lambda original, self, batch, outputs: original(_known(self, batch), outputs)),
)  # fmt: skip


@mutant(ENGINE, killers=("train.step.objective_raises",))
class HalfGradientKept(OtherOptimizer):
    """Keeps the gradient of a step that failed half way."""

    class kind(Optimizer):
        keeps = False

        def drop_gradients(self) -> None:
            if not self.keeps:
                super().drop_gradients()

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            self.keeps = False
            return super().step(norm)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        optimizer = running(self.trainer).optimizer
        if isinstance(optimizer, self.kind):
            optimizer.keeps = True
        return super().train_step(batch, objective)


@breaks("train_step", "train.step.objective_raises", incident="NeMo-RL#3589", row="failed-is-typed")
def ObjectiveErrorsSwallowed(original: Original) -> Any:
    """Takes an objective that raises for a step on nothing."""
    try:
        return original()
    except ArealError:
        raise
    except Exception:
        return TrainReport(
            loss=0.0, grad_norm=0.0, lr=0.0, stepped=False, num_microbatches=0, num_tokens=0, seconds=0.0
        )


class _FiniteLosses(Through):
    """Remembers whether every loss was finite."""

    finite = True

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Look at the loss."""
        loss, metrics = super().loss(columns, batch, normalizer)
        self.finite = self.finite and bool(torch.isfinite(loss.detach()))
        return loss, metrics


@breaks("train_step", "train.step.not_finite_slope")
def LooksAtTheLoss(original: Original, self: ReferenceTrainEngine, batch: Batch, objective: Objective) -> Any:
    """Skips a step by its loss: an infinite gradient under a finite loss is cleaned and stepped."""
    watched, optimizer = _FiniteLosses(objective), running(self.trainer).optimizer
    assert optimizer is not None
    whole = optimizer.step

    def step(norm: float) -> bool:
        if watched.finite and not math.isfinite(norm):
            for parameter in optimizer.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            norm = 1.0
        return whole(norm)

    optimizer.step = step  # type: ignore[method-assign]
    try:
        return original(batch, watched)
    finally:
        del optimizer.step
