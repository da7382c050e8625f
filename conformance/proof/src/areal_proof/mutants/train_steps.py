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
from areal_proof.mutants.train_parts import Columns, OtherObjective, Through, replace, replace_model
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"


@mutant(
    ENGINE,
    killers=("train.step.gradient_masks", "train.step.normalizer", "train.step.normalizer_given"),
    row="average-is-average",
)
class LocalNormalizer(OtherObjective):
    """Divides each micro-batch's loss by its own count of tokens."""

    class through(Through):
        """Its own count."""

        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            """Use the micro-batch's own normaliser."""
            own = self.inner.normalizer(batch).to(normalizer.device).clamp(min=1e-9)
            return self.inner.loss(columns, batch, own)


@mutant(
    ENGINE,
    killers=("train.step.gradient_masks", "train.step.budget", "train.step.normalizer"),
    incident="verl#7917",
    row="average-is-average",
)
class MeanOverMicrobatches(ReferenceTrainEngine):
    """Divides by the number of micro-batches once more."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        calls: list[Batch] = []

        class Counting(Through):
            def normalizer(self, part: Batch) -> Tensor:
                calls.append(part)
                return self.inner.normalizer(part)

            def loss(self, columns: Mapping[str, Tensor], part: Batch, normalizer: Tensor) -> Any:
                return self.inner.loss(columns, part, normalizer * len(calls))

        return super().train_step(batch, Counting(objective))


@mutant(ENGINE, killers=("train.step.normalizer",))
class NormalizerRounded(OtherObjective):
    """Rounds each micro-batch's share of the normaliser up to a whole number."""

    class through(Through):
        """A whole number."""

        def normalizer(self, batch: Batch) -> Tensor:
            """Round up."""
            return self.inner.normalizer(batch).ceil()


@mutant(ENGINE, killers=("train.step.normalizer_given",))
class NormalizerInSingle(OtherObjective):
    """Hands the normaliser over in float32, one number in a list."""

    class through(Through):
        """In float32."""

        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            """Cast it."""
            return self.inner.loss(columns, batch, normalizer.float())


@mutant(ENGINE, killers=("train.step.entropy_gradient", "train.step.columns", "train.step.gradient"))
class EntropyDetached(OtherObjective):
    """Hands the entropy over without gradient."""

    class through(Through):
        """Without gradient."""

        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            """Detach it."""
            cut = {str(n): c.detach() if n == Output.ENTROPY else c for n, c in columns.items()}
            return self.inner.loss(cut, batch, normalizer)


@mutant(ENGINE, killers=("train.step.sequences", "train.step.whole_sequences"))
class TableOfOtherRows(ReferenceTrainEngine):
    """Sorts the tokens of its micro-batches and forgets the table of sequences."""

    class _Through(Through):
        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            flipped = {str(name): column.flip(0) for name, column in batch.sequences.items()}
            return self.inner.loss(columns, batch.with_sequences(**flipped), normalizer)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return super().train_step(batch, self._Through(objective))


@mutant(ENGINE, killers=("train.step.off_mask",))
class MultipliesByMask(OtherObjective):
    """Masks by multiplication, so that what is not finite off the mask is not finite everywhere."""

    class through(Through):
        """Adds nothing times what is off the mask."""

        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            """Add it."""
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


@mutant(ENGINE, killers=("train.step.columns",))
class ColumnsOfTheNeighbour(OtherObjective):
    """Hands the log-probs of a micro-batch over one token late."""

    class through(Through):
        """One late."""

        def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> Any:
            """Shift them."""
            return self.inner.loss({str(n): c.roll(1) for n, c in columns.items()}, batch, normalizer)


@mutant(ENGINE, killers=("train.step.metrics",))
class LastMetricsWin(ReferenceTrainEngine):
    """Reports the metrics of the last micro-batch."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        last: dict[str, Sum] = {}

        class Keeping(Through):
            def loss(self, columns: Mapping[str, Tensor], part: Batch, normalizer: Tensor) -> Any:
                loss, metrics = self.inner.loss(columns, part, normalizer)
                last.update(metrics)
                return loss, metrics

        return attrs.evolve(super().train_step(batch, Keeping(objective)), metrics=last)


@mutant(ENGINE, killers=("train.step.report",))
class CountsTrainedTokens(ReferenceTrainEngine):
    """Reports the tokens on the mask as the tokens of the batch."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        return attrs.evolve(report, num_tokens=int(batch.tokens["loss_mask"].sum()))


@mutant(ENGINE, killers=("train.step.report",))
class OneMicrobatchTold(ReferenceTrainEngine):
    """Reports one micro-batch, however many there were."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return attrs.evolve(super().train_step(batch, objective), num_microbatches=1)


@mutant(ENGINE, killers=("train.packing.fills",))
class OneSequenceEach(ReferenceTrainEngine):
    """Runs every sequence in a micro-batch of its own."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        assert self._trainer is not None
        whole = self._trainer
        longest = int(batch.lengths.max()) if batch.num_sequences else 1
        replace(self, limits=attrs.evolve(whole.limits, max_tokens=min(whole.limits.max_tokens, longest)))
        try:
            return super().train_step(batch, objective)
        finally:
            self._trainer = whole


@mutant(ENGINE, killers=("train.step.version",), row="version-spans")
class StepCountsVersion(ReferenceTrainEngine):
    """Counts the version itself."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        self.version += 1
        return super().train_step(batch, objective)


@mutant(ENGINE, killers=("train.step.leaves_batch",))
class StepNormalisesAdvantages(ReferenceTrainEngine):
    """Writes the advantages back into the batch after use, smaller."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        batch.tokens["advantages"].mul_(0.5)
        return report


@mutant(ENGINE, killers=("train.step.deterministic",))
class SeedIgnored(ReferenceTrainEngine):
    """Seeds its generators with the same number whatever the spec says."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        return super().start(attrs.evolve(spec, seed=1), rank)


@mutant(ENGINE, killers=("train.step.deterministic", "train.forward.no_effect"))
class NeverSeeded(ReferenceTrainEngine):
    """Leaves its generators where the engine before left them."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        before = torch.get_rng_state()
        info = super().start(spec, rank)
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


@mutant(ENGINE, killers=("train.step.too_long",))
class BudgetOffByOne(ReferenceTrainEngine):
    """Refuses a sequence of exactly the budget."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        assert self._trainer is not None
        if batch.num_sequences and int(batch.lengths.max()) >= self._trainer.limits.max_tokens:
            raise BatchError("a sequence is too long", why="it has as many tokens as the budget")
        return super().forward(batch, outputs)


@mutant(ENGINE, killers=("train.step.order", "train.step.gradient"))
class FirstSequenceWeighsMore(ReferenceTrainEngine):
    """Multiplies the advantages of the first sequence by a hundred and one hundredths."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        first = torch.where(batch.sequence_ids == 0, 1.01, 1.0)
        return super().train_step(batch.with_tokens(advantages=batch.tokens["advantages"] * first), objective)
