"""Trainers that go wrong only where there is more than one rank, or take a parallel axis they know nothing of.

Knows: the parts of the second trainer that ranks meet in; layouts and claims.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.target import Target
from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Head, Objective, RankContext, Sum, TrainSpec
from areal_core.plugins.claims import full, unsupported
from areal_proof.mutants import mutant, replacing
from areal_proof.mutants.rows import Original, after, breaking, given, gives, row
from areal_proof.mutants.train_parts import copied, filled
from areal_proof.second.architecture import EMBEDDING, LM_HEAD, SCORE
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks

breaks_second = breaking("train/second", SecondTrainEngine, ranks=2)

Step = Callable[[Mapping[str, Tensor], float], bool]


class Sharing(SecondTrainEngine):
    """A trainer whose ranks are of another class, or whose objective is seen through; one rank alone is right."""

    ranks_class: type[Ranks] = Ranks

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Put the broken ranks in place of the right ones."""
        info = super().start(spec, rank)
        here = self.running()
        if here.ranks.size > 1:
            fields = attrs.asdict(here.ranks, recurse=False)
            self.started = attrs.evolve(here, ranks=self.ranks_class(**fields))
            self.spoil(self.running())
        return info

    def spoil(self, here: Started) -> None:
        """Break something of a trainer of several ranks."""

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.started is not None and self.started.ranks.size > 1


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


class _AddedInHalf(Ranks):
    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor.bfloat16().to(tensor.dtype) for tensor in super().add_up(tensors)]


class _OwnNormalizer(Through):
    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        return super().loss(columns, batch, torch.full_like(normalizer, self.own * self.ranks.size))


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


breaks_own_norm = breaking("train/second", _OwnNorm, ranks=2)


@breaks_own_norm("spoil", "train.ranks.clipping")
def ClipsByOwnNorm(original: Original, self: _OwnNorm, here: Started) -> None:
    """Each rank clips by the norm of its own gradient; only the report tells the global one."""
    original()
    adam = here.adam
    if adam is not None:
        adam.step = _with_norm(adam.step, lambda norm: self.own_norm if math.isfinite(norm) else norm)  # type: ignore[method-assign,assignment]


OWN_NORM_ROWS = breaks_own_norm.rows(
    row("ReportsOwnNorm", "Reports the norm of its own gradient on ranks other than 0.", "train.ranks.report_alike",
        train_step=after(lambda result, self: attrs.evolve(result, grad_norm=self.own_norm)
            if self.running().ranks.rank else result)),
)  # fmt: skip


@breaks_own_norm("spoil", "train.ranks.not_finite")
def StepsWhereFinite(original: Original, self: _OwnNorm, here: Started) -> None:
    """Each rank decides by its own gradient whether the step is skipped."""
    original()
    adam = here.adam
    if adam is not None:
        adam.step = _with_norm(adam.step, lambda norm: norm if math.isfinite(norm) else self.own_norm)  # type: ignore[method-assign,assignment]


@breaks_own_norm("train_step", "train.ranks.not_finite")
def SkippedStepCountsOnEveryRank(original: Original, self: _OwnNorm) -> Any:
    """Counts a skipped step in the schedule, on the ranks whose own gradient was finite."""
    report = original()
    adam = self.running().adam
    if not report.stepped and math.isfinite(self.own_norm) and adam is not None and self.several:
        adam.steps += 1
    return report


breaks = breaking("train/second", Sharing, ranks=2)


@breaks("train_step", "train.ranks.one_rank", "train.ranks.report_alike")
def ReportsOwnLoss(original: Original, self: Sharing, batch: Batch, objective: Objective) -> Any:
    """Reports the loss of its own shard."""
    seen = Through(objective, self.running().ranks)
    report = original(batch, seen)
    return attrs.evolve(report, loss=seen.total) if self.several else report


@breaks("train_step", "train.ranks.one_rank", incident="verl#7917", row="average-is-average")
def SumForAverage(original: Original, self: Sharing) -> Any:
    """Adds the values of metrics over ranks, and takes the weight of one: a mean shown is that many times too large."""
    report = original()
    size = self.running().ranks.data_size
    entries = {name: Sum(value=entry.value, weight=entry.weight / size) for name, entry in report.metrics.items()}
    return attrs.evolve(report, metrics=entries)


@breaks("train_step", "train.ranks.uneven")
def MetricsOfRankZero(original: Original, self: Sharing, batch: Batch, objective: Objective) -> Any:
    """Adds up the metrics rank 0 has, and loses those only another rank's shard gave."""
    here = self.running()
    seen = Through(objective, here.ranks)
    report = original(batch, seen)
    known = here.ranks.agree(lambda: sorted(set(seen.names)))[0]
    return attrs.evolve(report, metrics={name: report.metrics[name] for name in known})


@breaks("train_step", "train.ranks.schedule")
def ScheduleCountsRanks(original: Original, self: Sharing) -> Any:
    """Counts an optimizer step once per rank, so the schedule runs ahead."""
    report = original()
    here = self.running()
    if here.adam is not None:
        here.adam.steps += here.ranks.size - 1
    return report


@breaks("train_step", "train.ranks.uneven")
def MetricsOfOnePage(original: Original, self: Sharing) -> Any:
    """Ranks tell each other what fits into four kilobytes, and metrics beyond are lost."""
    report = original()
    if not self.several:
        return report
    sizes = accumulate(len(f"{name}: [{entry.value}, {entry.weight}], ") for name, entry in report.metrics.items())
    fitting = [name for name, size in zip(report.metrics, sizes, strict=True) if size <= 4096]
    return attrs.evolve(report, metrics={name: report.metrics[name] for name in fitting})


class _Ends(Through):
    ends: Mapping[str, float] = {}

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        loss, metrics = super().loss(columns, batch, normalizer)
        self.ends = {name: entry.value for name, entry in metrics.items() if name.endswith(("_min", "_max"))}
        return loss, metrics


@breaks("train_step", "train.ranks.uneven")
def ExtremesOfOneShard(original: Original, self: Sharing, batch: Batch, objective: Objective) -> Any:
    """Tells an extreme of rank 0 for that of all."""
    here = self.running()
    seen = _Ends(objective, here.ranks)
    report = original(batch, seen)
    ends = here.ranks.agree(lambda: seen.ends)[0]
    own = {name: Sum(value=value, weight=1.0) for name, value in ends.items()}
    return attrs.evolve(report, metrics={**report.metrics, **own})


class _Untrained(Through):
    def normalizer(self, batch: Batch) -> Tensor:
        share = super().normalizer(batch)
        return share if bool(batch.tokens["loss_mask"].any()) else torch.zeros_like(share)


@breaks("spoil", "train.ranks.extremes")
def SquaresOfRanksInFloat(here: Started) -> None:
    """Ranks tell each other squares of norms in float32, and skip the step of a norm whose square is none."""
    if here.adam is not None:
        here.adam.step = _with_norm(here.adam.step, lambda norm: math.sqrt(float(torch.tensor(norm).square())))  # type: ignore[method-assign,assignment]


@breaks("spoil", "train.ranks.untied")
def DropsLastRows(here: Started) -> None:
    """Gives each rank as many rows of the vocabulary as the others, and drops the gradient of the rest."""
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


@breaks("spoil", "train.ranks.one_rank")
def PaddingTrainedByRanks(self: Sharing, here: Started) -> None:
    """Several ranks train the row of padding as what embeds it, which one rank does not."""
    network = here.columns.network
    network = attrs.evolve(network, architecture=attrs.evolve(network.architecture, padding=None))
    self.started = attrs.evolve(here, columns=attrs.evolve(here.columns, network=network))


@breaks("spoil", "train.ranks.value_head")
def HeadPerRank(here: Started) -> None:
    """Makes the value head on each rank by itself, from that rank's own random numbers."""
    if here.spec.head is Head.VALUE:
        with torch.no_grad():
            here.weights[f"{SCORE}.weight"].add_(0.01 * here.ranks.rank)


@breaks("forward", "train.ranks.forward")
def ScoresBeforeTheStep(original: Original, self: Any) -> Any:
    """A rank other than 0 keeps the weights of its first score, and scores with them ever after."""
    here = self.running()
    if not here.ranks.rank:
        return original()
    with filled(here.weights, vars(self).setdefault("first", copied(here.weights))):
        return original()


SECOND_ROWS = breaks_second.rows(
    row("ShardsAreAveraged",
        "Divides each shard's loss by its own count and takes the mean, so a token of a small shard weighs more.",
        "train.ranks.uneven", "train.ranks.four", base=Sharing, ranks=4,
        train_step=lambda original, self, batch, objective: original(batch,
            _OwnNormalizer(objective, self.running().ranks))),
    row("AdapterPerRank", "Draws the adapter from a seed that counts the rank, so that ranks train different ones.",
        "train.ranks.lora", start=given(seed=lambda spec, rank: spec.seed + rank.rank)),
    row("EverybodyIsFirst",
        "Every rank reports data rank 0, so the first shard is trained twice and the second never.",
        "train.ranks.placement", start=gives(data_rank=0)),
    row("CountsOwnParameters", "Reports the parameters of its own part as those of the model.",
        "train.ranks.placement",
        start=gives(num_parameters=lambda result, rank: result.num_parameters // rank.world_size)),
    row("AxesSwapped",
        "Tells tensor ranks from data ranks by the wrong half of the rank's number, which two ranks cannot show.",
        "train.ranks.four", ranks=4, start=gives(data_rank=lambda result, rank: rank.rank % result.data_size)),
    row("TensorRanksSplitTheBatch", "Reports a shard of its own for each tensor rank, though they share one.",
        "train.ranks.tensor", start=gives(data_rank=lambda rank: rank.rank, data_size=lambda rank: rank.world_size)),
)  # fmt: skip


class _InOrderOfASet(Ranks):
    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        names = [f"gradient {number}" for number in range(len(tensors))]
        order = [names.index(name) for name in {*names}]
        totals = dict(zip(order, super().add_up([tensors[number] for number in order]), strict=True))
        return [totals[number] for number in range(len(tensors))]


class _PerTensorRank(Ranks):
    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor * self.tensor_size for tensor in super().add_up(tensors)]


ROWS = breaks.rows(
    row("GradientIsMean",
        "Averages gradients over ranks, as data-parallel wrappers do, though losses are already shares of one sum.",
        "train.ranks.one_rank", "train.ranks.uneven", ranks_class=_Averaged),
    row("AddsInOrderOfASet", "Adds gradients over ranks in the order in which a set gives their names.",
        "train.ranks.unlike", ranks_class=_InOrderOfASet),
    row("AddsRanksInHalf", "Rounds the sum of gradients over ranks to bfloat16.", "train.ranks.half",
        ranks_class=_AddedInHalf),
    row("ForgetsUntrainedShard",
        "Leaves a shard without a trained token out of the normaliser, though its sequences count.",
        "train.ranks.nothing_trained",
        train_step=lambda original, self, batch, objective: original(batch,
            _Untrained(objective, self.running().ranks) if self.several else objective)),
    row("ShardComesSorted", "Returns its shard in the order it was computed in: by length.", "train.ranks.forward",
        forward=after(lambda result, self, batch: result.select(batch.lengths.argsort(stable=True)) if self.several
            else result)),
    row("EachTensorRankCounts", "Adds the gradient of one loss once for every tensor rank that computed it.",
        "train.ranks.tensor", ranks_class=_PerTensorRank),
)  # fmt: skip


class _LoneAxis(SecondTrainEngine):
    """Takes an axis it knows nothing of for data ranks that all get the whole batch."""

    axis = ""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        degree = dict(spec.layout).get(self.axis, 1)
        layout = {"d": degree * dict(spec.layout).get("d", 1)}
        info = super().start(attrs.evolve(spec, layout=layout) if degree > 1 else spec, rank)
        return attrs.evolve(info, data_rank=0, data_size=1) if degree > 1 else info


class _ContextParallel(_LoneAxis):
    axis = "c"


class _PipelineParallel(_LoneAxis):
    axis = "p"


class _ExpertParallel(Sharing):
    """Takes ranks that are to share the experts for plain data ranks, which compute the same."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        shared = dict(spec.layout).get("e", 1) > 1
        return super().start(attrs.evolve(spec, layout={"d": rank.world_size}) if shared else spec, rank)


class _OwnTokensOnly(_ExpertParallel):
    """Gives each expert to one rank, and to the expert the tokens of that rank only."""

    def spoil(self, here: Started) -> None:
        assert here.adam is not None
        for name, tensor in here.adam.trained.items():
            _, inside, rest = name.partition(".experts.")
            if inside and int(rest.partition(".")[0]) % here.ranks.size != here.ranks.rank:
                tensor.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]


def _claiming(whole: Target, engine: type, claim: str, *layouts: str) -> Target:
    broken = replacing("train", engine, claims={claim: full()})(whole)
    return attrs.evolve(broken, adapter=attrs.evolve(broken.adapter, layouts=layouts))


@mutant("train/second", killers=("train.ranks.context", "train.ranks.four_uneven"), ranks=4)
def context_is_copies(whole: Target) -> Target:
    """Claims context parallelism, and lets every context rank train on all of every sequence."""
    return _claiming(whole, _ContextParallel, "parallel.context", "d1c2")


@mutant("train/second", killers=("train.ranks.pipeline",), ranks=2)
def pipeline_is_copies(whole: Target) -> Target:
    """Claims pipeline parallelism, and lets every stage train on all layers."""
    return _claiming(whole, _PipelineParallel, "parallel.pipeline", "d1p2")


@mutant("train/second", killers=("train.ranks.expert", "train.ranks.four_experts"), ranks=4)
def experts_see_their_ranks_tokens(whole: Target) -> Target:
    """Claims expert parallelism, and trains each expert on the tokens of the rank that holds it, no others."""
    return _claiming(whole, _OwnTokensOnly, "parallel.expert", "d2e2", "d4e2")


class _TensorParallel(_LoneAxis):
    axis = "t"


breaks_ranks_axes = breaking("train/second", _TensorParallel, ranks=2)
RANKS_AXES_ROWS = breaks_ranks_axes.rows(
    row("TakesTensorLayout", "Takes a layout with tensor ranks, which it does not claim, and trains copies.",
        "train.ranks.refuse.tensor", claims={"parallel.tensor": unsupported("data ranks only")}),
    row("TakesContextLayout", "Takes a layout with context ranks, which it does not claim, and trains copies.",
        "train.ranks.refuse.context", base=_ContextParallel),
    row("TakesPipelineLayout", "Takes a layout with stages, which it does not claim, and trains copies.",
        "train.ranks.refuse.pipeline", base=_PipelineParallel),
    row("TakesExpertLayout",
        "Takes a layout with expert ranks, which it does not claim, and trains each expert on some of its tokens.",
        "train.ranks.refuse.expert", base=_OwnTokensOnly),
)  # fmt: skip
