"""One optimizer step, and one scoring pass, over packed micro-batches: the same for every engine.

Knows: the global normaliser, the order of collectives, what is reported.
Does not know: how columns are computed or gradients reduced; the engine's Model or Pipeline does that.

The order on every rank: agree (check, count micro-batches, add normalisers), then forward and
backward per micro-batch, then agree (loss, metrics, norm), then the optimizer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import CANDIDATES, Head, Objective, Output, Sum, TrainReport, TrainSpec
from areal_torch import hf
from areal_torch.candidates import check_candidates
from areal_torch.device import synchronize
from areal_torch.experts import Experts, check_routes
from areal_torch.group import RankGroup, agree
from areal_torch.images import Vision, check_images
from areal_torch.microbatches import check_batch, cut, placeholder
from areal_torch.model import check_outputs
from areal_torch.optimizer import Optimizer
from areal_torch.refusals import refuse_routes

Columns = Mapping[str, Tensor]
Score = Callable[[int, Columns], Tensor]
"""Micro-batch number and its columns -> its share of the loss, which depends on every column."""

_EXTREMES = {"_min": min, "_max": max}
"""Metrics whose names end so have the weight 1 and are no sums: of two, the lesser or the larger one counts."""


class Model(Protocol):
    """What an engine gives to these loops, if its passes come one after another."""

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Columns:
        """Return float32 [T] columns with gradient; each call is collective over sharded ranks.

        Ranks that share one shard of the batch return equal columns.
        """

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add this loss's gradient, summed (not averaged) over data ranks; `last` in this step."""


@runtime_checkable
class Pipeline(Protocol):
    """What an engine gives instead, if it decides itself which pass comes when."""

    def accumulate(self, parts: Sequence[Batch], outputs: frozenset[Output], score: Score) -> None:
        """Run every micro-batch forward and backward; call `score` for each on a rank that has its columns.

        The gradient is summed over data ranks, and ranks that share a shard count once.
        """

    def columns_of(self, parts: Sequence[Batch], outputs: frozenset[Output]) -> Sequence[Columns]:
        """Return the columns of every micro-batch on every rank, without gradient."""


@frozen(kw_only=True)
class Limits:
    """What a batch must fit into."""

    head: Head
    max_tokens: int
    context_length: int
    vocab_size: int
    experts: Experts | None = None
    """What recorded routes must be like; None where they are not used."""
    vision: Vision | None = None
    """What images must be like; None where none are seen."""
    candidates: bool = False
    """Whether the engine claims `candidates`."""

    @classmethod
    def of(cls, spec: TrainSpec, config: Any, **claimed: Any) -> Limits:
        """Read them from the spec and the transformers configuration; `claimed` are its own fields. Any: not typed."""
        return cls(
            head=spec.head,
            max_tokens=spec.max_tokens_per_microbatch,
            context_length=hf.context_length(config),
            vocab_size=int(config.get_text_config().vocab_size),
            **claimed,
        )


def train_step(
    model: Model | Pipeline,
    optimizer: Optimizer,
    group: RankGroup,
    device: torch.device,
    limits: Limits,
    batch: Batch,
    objective: Objective,
) -> TrainReport:
    """Make one optimizer step on this rank's shard. Collective.

    Raises:
        BatchError, CapabilityError: on every rank, before anything is computed.
    """
    began = time.perf_counter()
    microbatches: list[Batch] = []

    def prepare() -> dict[str, float]:
        check_outputs(limits.head, objective.outputs)
        _check(batch, limits, objective.columns)
        check_candidates(batch, limits.candidates, limits.vocab_size, objective.outputs, given=True)
        microbatches.extend(cut(batch, limits.max_tokens))
        shares = [float(objective.normalizer(part)) for part in microbatches]
        return {"microbatches": len(microbatches), "normalizer": math.fsum(shares), "tokens": batch.num_tokens}

    facts = _of_each_shard(group, agree(group, prepare))
    num_microbatches = max(int(fact["microbatches"]) for fact in facts)
    normalizer = _positive(math.fsum(fact["normalizer"] for fact in facts))
    try:
        scored = _accumulate(model, objective, microbatches, num_microbatches, normalizer, device)
    except BaseException:
        optimizer.drop_gradients()  # half a step's, which the next step would add to its own
        raise
    reports = group.gather({"scored": scored, "squared_norm": optimizer.squared_norm()})
    norm = math.sqrt(_total(report["squared_norm"] for report in reports))
    scores = _of_each_shard(group, [report["scored"] for report in reports])
    lr = optimizer.lr
    stepped = optimizer.step(norm)
    synchronize(device)
    return TrainReport(
        loss=_total(score["loss"] for score in scores),
        grad_norm=norm,
        lr=lr,
        stepped=stepped,
        num_microbatches=num_microbatches,
        num_tokens=sum(int(fact["tokens"]) for fact in facts),
        seconds=time.perf_counter() - began,
        metrics=_add_metrics([score["metrics"] for score in scores]),
    )


@torch.no_grad()
def forward(
    model: Model | Pipeline,
    group: RankGroup,
    device: torch.device,
    limits: Limits,
    batch: Batch,
    outputs: frozenset[Output],
) -> Batch:
    """Return the batch, on its own device, with one more column per output. Collective."""
    microbatches: list[Batch] = []

    def prepare() -> int:
        check_outputs(limits.head, outputs)
        _check(batch, limits, frozenset())
        check_candidates(batch, limits.candidates, limits.vocab_size, outputs, given=False)
        microbatches.extend(cut(batch, limits.max_tokens))
        return len(microbatches)

    num_microbatches = max(agree(group, prepare))
    columns = {str(name): torch.zeros(batch.num_tokens, device=batch.device) for name in outputs}
    if Output.CANDIDATE_LOGPROBS in outputs:
        columns[CANDIDATES] = batch.tokens[CANDIDATES].clone()
        columns[Output.CANDIDATE_LOGPROBS] = torch.zeros(columns[CANDIDATES].shape, device=batch.device)
    parts = _filled(microbatches, num_microbatches, device)
    computed: Iterable[Columns]
    if isinstance(model, Pipeline):
        computed = model.columns_of([part.to(device) for part in parts], outputs)
    else:
        computed = (model.columns(part.to(device), outputs) for part in parts)
    for number, found in enumerate(computed):
        if number < len(microbatches):
            rows = parts[number].tokens["row"]
            for name, column in found.items():
                moved = column.to(batch.device)
                columns[str(name)][rows] = (
                    torch.where(moved < 0, columns[name][rows], moved) if name == CANDIDATES else moved
                )
    return batch.with_tokens(**columns)


def _accumulate(
    model: Model | Pipeline,
    objective: Objective,
    microbatches: list[Batch],
    num_microbatches: int,
    normalizer: float,
    device: torch.device,
) -> dict[str, Any] | None:  # Any: json
    """Run forward and backward over every micro-batch; return the loss and metric sums, None if others have them."""
    scale = torch.tensor(normalizer, dtype=torch.float64, device=device)
    parts = [part.to(device) for part in _filled(microbatches, num_microbatches, device)]
    losses: list[Tensor] = []
    metrics: dict[str, list[float]] = {}

    def score(number: int, columns: Columns) -> Tensor:
        if number >= len(microbatches):
            losses.append(torch.zeros((), device=device))
            return _nothing(columns)
        loss, sums = objective.loss(columns, parts[number], scale)
        losses.append(loss.detach())
        for name, entry in sums.items():
            _add(metrics, name, entry.value, entry.weight)
        return loss if loss.requires_grad else loss + _nothing(columns)

    if isinstance(model, Pipeline):
        model.accumulate(parts, objective.outputs, score)
    else:
        for number, part in enumerate(parts):
            model.backward(score(number, model.columns(part, objective.outputs)), last=number == len(parts) - 1)
    return {"loss": float(torch.stack(losses).double().sum()), "metrics": metrics} if losses else None


def _filled(microbatches: Sequence[Batch], count: int, device: torch.device) -> list[Batch]:
    """Return as many micro-batches as the busiest rank has: a rank without data takes part in every pass."""
    return [*microbatches, *(placeholder(device) for _ in range(count - len(microbatches)))]


def _of_each_shard(group: RankGroup, facts: Sequence[Any]) -> list[Any]:
    """Return one fact of each shard of the batch, in order: that of the first rank that has one. Any: json."""
    found: dict[int, Any] = {}
    for shard, fact in zip(group.data_ranks, facts, strict=True):
        if fact is not None:
            found.setdefault(shard, fact)
    return [found[shard] for shard in sorted(found)]


def _nothing(columns: Mapping[str, Tensor]) -> Tensor:
    """Return 0 that depends on the model, so that a backward pass takes part in every collective."""
    return torch.stack([column.sum() for column in columns.values()]).sum() * 0.0


def _check(batch: Batch, limits: Limits, columns: frozenset[str]) -> None:
    if limits.experts is None:
        refuse_routes(batch)
    else:
        check_routes(batch, limits.experts)
    check_images(batch, limits.vision)
    check_batch(
        batch,
        columns=columns,
        max_tokens=limits.max_tokens,
        context_length=limits.context_length,
        vocab_size=limits.vocab_size,
    )


def _positive(normalizer: float) -> float:
    if not (math.isfinite(normalizer) and normalizer > 0.0):
        raise BatchError(
            f"the loss would be divided by {normalizer}",
            why="no token of this batch, on any rank, is trained on",
            fix="check that loss_mask marks the generated tokens",
        )
    return normalizer


def _total(values: Any) -> float:
    """Add in rank order. Any: an iterable of floats, nan and inf among them, which math.fsum refuses."""
    return float(sum(values))


def _add_metrics(parts: list[dict[str, list[float]]]) -> dict[str, Sum]:
    totals: dict[str, list[float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            _add(totals, name, value, weight)
    return {name: Sum(value=value, weight=weight) for name, (value, weight) in totals.items()}


def _add(totals: dict[str, list[float]], name: str, value: float, weight: float) -> None:
    """Add one entry; of two extremes, both of weight 1, the further one stays."""
    total = totals.setdefault(name, [0.0, 0.0])
    further = _EXTREMES.get(name[-4:])
    if further is not None and total[1] == weight == 1.0:
        total[0] = further(total[0], value)
    else:
        total[0] += value
        total[1] += weight
