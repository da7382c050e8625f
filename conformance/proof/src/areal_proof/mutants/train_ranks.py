"""Trainers that go wrong only where there is more than one rank: gradients, norms, metrics, shards, placement.

Knows: the parts of the second trainer that ranks meet in.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Head, Objective, Output, RankContext, Sum, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.folder import EMBEDDING, LM_HEAD, SCORE
from areal_proof.second.train.ranks import Ranks

Step = Callable[[Mapping[str, Tensor], float], bool]


class Sharing(SecondTrainEngine):
    """A trainer whose ranks are of another class, or whose objective is seen through; one rank alone is right."""

    ranks_class: type[Ranks] = Ranks

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Put the broken ranks in place of the right ones."""
        info = super().start(spec, rank)
        here = self._running()
        if here.ranks.size > 1:
            fields = attrs.asdict(here.ranks, recurse=False)
            self._started = attrs.evolve(here, ranks=self.ranks_class(**fields))
            self.spoil(self._running())
        return info

    def spoil(self, here: Started) -> None:
        """Break something of a trainer of several ranks."""

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self._started is not None and self._started.ranks.size > 1


class Through:
    """An objective seen through; subclasses change what passes."""

    def __init__(self, whole: Objective, ranks: Ranks) -> None:
        self.whole, self.ranks = whole, ranks
        self.outputs, self.columns = whole.outputs, whole.columns
        self.own, self.total = 0.0, 0.0
        self.names: list[str] = []

    def normalizer(self, batch: Batch) -> Tensor:
        """Remember this rank's share."""
        share = self.whole.normalizer(batch)
        self.own += float(share)
        return share

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Remember this rank's loss and the names of its metrics."""
        loss, metrics = self.whole.loss(columns, batch, normalizer)
        self.total += float(loss.detach())
        self.names += metrics
        return loss, metrics


class _Averaged(Ranks):
    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor / self.size for tensor in super().add_up(tensors)]


@mutant("train/second", killers=("train.ranks.one_rank", "train.ranks.uneven"), ranks=2)
class GradientIsMean(Sharing):
    """Averages gradients over ranks, as data-parallel wrappers do, though losses are already shares of one sum."""

    ranks_class = _Averaged


class _OwnNormalizer(Through):
    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        return super().loss(columns, batch, torch.full_like(normalizer, self.own * self.ranks.size))


@mutant("train/second", killers=("train.ranks.uneven", "train.ranks.four"), ranks=4)
class ShardsAreAveraged(Sharing):
    """Divides each shard's loss by its own count and takes the mean, so a token of a small shard weighs more."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Give the objective another normaliser."""
        return super().train_step(batch, _OwnNormalizer(objective, self._running().ranks))


class _Noting(Ranks):
    """Ranks that remember the norm of this rank's own gradient."""

    noted: Callable[[float], None] = staticmethod(lambda _norm: None)

    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        type(self).noted(math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors)))
        return super().add_up(tensors)


def _with_norm(step: Step, norm_of: Callable[[float], float]) -> Step:
    return lambda gradients, norm: step(gradients, norm_of(norm))


class _OwnNorm(Sharing):
    ranks_class = _Noting
    own_norm = 0.0

    def spoil(self, here: Started) -> None:
        _Noting.noted = staticmethod(lambda norm: setattr(self, "own_norm", norm))


@mutant("train/second", killers=("train.ranks.clipping",), ranks=2)
class ClipsByOwnNorm(_OwnNorm):
    """Each rank clips by the norm of its own gradient; only the report tells the global one."""

    def spoil(self, here: Started) -> None:
        """Put the own norm in place of the global one where the step is made."""
        super().spoil(here)
        adam = here.adam
        if adam is not None:
            adam.step = _with_norm(adam.step, lambda norm: self.own_norm if math.isfinite(norm) else norm)  # type: ignore[method-assign,assignment]


@mutant("train/second", killers=("train.ranks.report_alike",), ranks=2)
class ReportsOwnNorm(_OwnNorm):
    """Reports the norm of its own gradient on ranks other than 0."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Put the own norm into the report."""
        report = super().train_step(batch, objective)
        return attrs.evolve(report, grad_norm=self.own_norm) if self._running().ranks.rank else report


@mutant("train/second", killers=("train.ranks.not_finite",), ranks=2)
class StepsWhereFinite(_OwnNorm):
    """Each rank decides by its own gradient whether the step is skipped."""

    def spoil(self, here: Started) -> None:
        """Decide by the own norm."""
        super().spoil(here)
        adam = here.adam
        if adam is not None:
            adam.step = _with_norm(adam.step, lambda norm: norm if math.isfinite(norm) else self.own_norm)  # type: ignore[method-assign,assignment]


@mutant("train/second", killers=("train.ranks.not_finite",), ranks=2)
class SkippedStepCountsOnEveryRank(_OwnNorm):
    """Counts a skipped step in the schedule, on the ranks whose own gradient was finite."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Count it."""
        report = super().train_step(batch, objective)
        adam = self._running().adam
        if not report.stepped and math.isfinite(self.own_norm) and adam is not None and self.several:
            adam.steps += 1
        return report


@mutant("train/second", killers=("train.ranks.one_rank", "train.ranks.report_alike"), ranks=2)
class ReportsOwnLoss(Sharing):
    """Reports the loss of its own shard."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Put the own loss into the report."""
        seen = Through(objective, self._running().ranks)
        report = super().train_step(batch, seen)
        return attrs.evolve(report, loss=seen.total) if self.several else report


@mutant("train/second", killers=("train.ranks.one_rank",), incident="verl#7917", row="average-is-average", ranks=2)
class SumForAverage(Sharing):
    """Adds the values of metrics over ranks, and takes the weight of one: a mean shown is that many times too large."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Shrink the weights."""
        report = super().train_step(batch, objective)
        size = self._running().ranks.data_size
        entries = {name: Sum(value=entry.value, weight=entry.weight / size) for name, entry in report.metrics.items()}
        return attrs.evolve(report, metrics=entries)


@mutant("train/second", killers=("train.ranks.uneven",), ranks=2)
class MetricsOfRankZero(Sharing):
    """Adds up the metrics rank 0 has, and loses those only another rank's shard gave."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Leave out what rank 0 does not know."""
        here = self._running()
        seen = Through(objective, here.ranks)
        report = super().train_step(batch, seen)
        known = here.ranks.agree(lambda: sorted(set(seen.names)))[0]
        return attrs.evolve(report, metrics={name: report.metrics[name] for name in known})


@mutant("train/second", killers=("train.ranks.schedule",), ranks=2)
class ScheduleCountsRanks(Sharing):
    """Counts an optimizer step once per rank, so the schedule runs ahead."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Count more."""
        report = super().train_step(batch, objective)
        here = self._running()
        if here.adam is not None:
            here.adam.steps += here.ranks.size - 1
        return report


class _Untrained(Through):
    def normalizer(self, batch: Batch) -> Tensor:
        share = super().normalizer(batch)
        return share if bool(batch.tokens["loss_mask"].any()) else torch.zeros_like(share)


@mutant("train/second", killers=("train.ranks.nothing_trained",), ranks=2)
class ForgetsUntrainedShard(Sharing):
    """Leaves a shard without a trained token out of the normaliser, though its sequences count."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Leave it out."""
        return super().train_step(batch, _Untrained(objective, self._running().ranks) if self.several else objective)


@mutant("train/second", killers=("train.ranks.untied",), ranks=2)
class DropsLastRows(Sharing):
    """Gives each rank as many rows of the vocabulary as the others, and drops the gradient of the rest."""

    def spoil(self, here: Started) -> None:
        """Drop the gradient of the rows that are left over."""
        adam = here.adam
        if adam is None:
            return
        step = adam.step

        def stepping(gradients: Mapping[str, Tensor], norm: float) -> bool:
            head = LM_HEAD if LM_HEAD in gradients else EMBEDDING
            rows = gradients[head].shape[0]
            gradients[head][rows - rows % (2 * here.ranks.size) :] = 0.0
            return step(gradients, norm)

        adam.step = stepping  # type: ignore[method-assign]


@mutant("train/second", killers=("train.ranks.value_head",), ranks=2)
class HeadPerRank(Sharing):
    """Makes the value head on each rank by itself, from that rank's own random numbers."""

    def spoil(self, here: Started) -> None:
        """Draw another head."""
        if here.spec.head is Head.VALUE:
            with torch.no_grad():
                here.weights[f"{SCORE}.weight"].add_(0.01 * here.ranks.rank)


@mutant("train/second", killers=("train.ranks.lora",), ranks=2)
class AdapterPerRank(SecondTrainEngine):
    """Draws the adapter from a seed that counts the rank, so that ranks train different ones."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Count the rank in."""
        return super().start(attrs.evolve(spec, seed=spec.seed + rank.rank), rank)


@mutant("train/second", killers=("train.ranks.forward",), ranks=2)
class ShardComesSorted(Sharing):
    """Returns its shard in the order it was computed in: by length."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Sort."""
        scored = super().forward(batch, outputs)
        return scored.select(batch.lengths.argsort(stable=True)) if self.several else scored


@mutant("train/second", killers=("train.ranks.forward",), ranks=2)
class ScoresBeforeTheStep(Sharing):
    """A rank other than 0 keeps the weights of its first score, and scores with them ever after."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Compute with old weights."""
        here = self._running()
        if not here.ranks.rank:
            return super().forward(batch, outputs)
        now = {name: tensor.detach().clone() for name, tensor in here.weights.items()}
        if not hasattr(self, "_first"):
            self._first = now
        with torch.no_grad():
            for name, tensor in here.weights.items():
                tensor.copy_(self._first[name])
            scored = super().forward(batch, outputs)
            for name, tensor in here.weights.items():
                tensor.copy_(now[name])
        return scored


@mutant("train/second", killers=("train.ranks.placement",), ranks=2)
class EverybodyIsFirst(SecondTrainEngine):
    """Every rank reports data rank 0, so the first shard is trained twice and the second never."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Report 0."""
        return attrs.evolve(super().start(spec, rank), data_rank=0)


@mutant("train/second", killers=("train.ranks.placement",), ranks=2)
class CountsOwnParameters(SecondTrainEngine):
    """Reports the parameters of its own part as those of the model."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Report a part."""
        info = super().start(spec, rank)
        return attrs.evolve(info, num_parameters=info.num_parameters // rank.world_size)


@mutant("train/second", killers=("train.ranks.four",), ranks=4)
class AxesSwapped(SecondTrainEngine):
    """Tells tensor ranks from data ranks by the wrong half of the rank's number, which two ranks cannot show."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Report the other half."""
        info = super().start(spec, rank)
        return attrs.evolve(info, data_rank=rank.rank % info.data_size)


@mutant("train/second", killers=("train.ranks.tensor",), ranks=2)
class TensorRanksSplitTheBatch(SecondTrainEngine):
    """Reports a shard of its own for each tensor rank, though they share one."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Report as if ranks were data ranks."""
        return attrs.evolve(super().start(spec, rank), data_rank=rank.rank, data_size=rank.world_size)


class _PerTensorRank(Ranks):
    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor * self.tensor_size for tensor in super().add_up(tensors)]


@mutant("train/second", killers=("train.ranks.tensor",), ranks=2)
class EachTensorRankCounts(Sharing):
    """Adds the gradient of one loss once for every tensor rank that computed it."""

    ranks_class = _PerTensorRank
