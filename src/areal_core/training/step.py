"""One optimizer step, and one scoring pass, over packed micro-batches: the same for every engine.

Knows: the global normaliser, the order of collectives, what is reported.
Does not know: how columns are computed or gradients reduced; the engine's Model does that.

The order on every rank: agree (check, count micro-batches, add normalisers), then forward and
backward per micro-batch, then agree (loss, metrics, norm), then the optimizer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.errors import BatchError
from areal_core.contract.train import Head, Objective, Output, Sum, TrainReport, TrainSpec
from areal_core.data.batch import Batch
from areal_core.training import hf
from areal_core.training.device import synchronize
from areal_core.training.group import Group, agree
from areal_core.training.microbatches import check_batch, cut, placeholder
from areal_core.training.model import check_outputs
from areal_core.training.optimizer import Optimizer
from areal_core.training.refusals import refuse_routes


class Model(Protocol):
    """What an engine gives to these loops."""

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Return float32 [T] columns with gradient; each call is collective over sharded ranks."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add this loss's gradient, summed (not averaged) over ranks; `last` in this step."""


@frozen(kw_only=True)
class Limits:
    """What a batch must fit into."""

    head: Head
    max_tokens: int
    context_length: int
    vocab_size: int

    @classmethod
    def of(cls, spec: TrainSpec, config: Any) -> Limits:
        """Read them from the spec and the transformers configuration (Any: not typed here)."""
        return cls(
            head=spec.head,
            max_tokens=spec.max_tokens_per_microbatch,
            context_length=hf.context_length(config),
            vocab_size=int(config.get_text_config().vocab_size),
        )


def train_step(
    model: Model,
    optimizer: Optimizer,
    group: Group,
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
        microbatches.extend(cut(batch, limits.max_tokens))
        shares = [float(objective.normalizer(part)) for part in microbatches]
        return {"microbatches": len(microbatches), "normalizer": math.fsum(shares), "tokens": batch.num_tokens}

    facts = agree(group, prepare)
    num_microbatches = max(int(fact["microbatches"]) for fact in facts)
    normalizer = _positive(math.fsum(fact["normalizer"] for fact in facts))
    try:
        loss, metrics = _accumulate(model, objective, microbatches, num_microbatches, normalizer, device)
    except BaseException:
        optimizer.drop_gradients()  # half a step's, which the next step would add to its own
        raise
    reports = group.gather({"loss": loss, "metrics": metrics, "squared_norm": optimizer.squared_norm()})
    norm = math.sqrt(_total(report["squared_norm"] for report in reports))
    lr = optimizer.lr
    stepped = optimizer.step(norm)
    synchronize(device)
    return TrainReport(
        loss=_total(report["loss"] for report in reports),
        grad_norm=norm,
        lr=lr,
        stepped=stepped,
        num_microbatches=num_microbatches,
        num_tokens=sum(int(fact["tokens"]) for fact in facts),
        seconds=time.perf_counter() - began,
        metrics=_add_metrics([report["metrics"] for report in reports]),
    )


@torch.no_grad()
def forward(
    model: Model, group: Group, device: torch.device, limits: Limits, batch: Batch, outputs: frozenset[Output]
) -> Batch:
    """Return the batch, on its own device, with one more column per output. Collective."""
    microbatches: list[Batch] = []

    def prepare() -> int:
        check_outputs(limits.head, outputs)
        _check(batch, limits, frozenset())
        microbatches.extend(cut(batch, limits.max_tokens))
        return len(microbatches)

    num_microbatches = max(agree(group, prepare))
    columns = {str(name): torch.zeros(batch.num_tokens, device=batch.device) for name in outputs}
    for number in range(num_microbatches):
        if number >= len(microbatches):
            model.columns(placeholder(device), outputs)
            continue
        part = microbatches[number]
        for name, column in model.columns(part.to(device), outputs).items():
            columns[str(name)][part.tokens["row"]] = column.to(batch.device)
    return batch.with_tokens(**columns)


def _accumulate(
    model: Model,
    objective: Objective,
    microbatches: list[Batch],
    num_microbatches: int,
    normalizer: float,
    device: torch.device,
) -> tuple[float, dict[str, list[float]]]:
    """Run forward and backward over every micro-batch; return this rank's loss and metric sums."""
    scale = torch.tensor(normalizer, dtype=torch.float64, device=device)
    losses: list[Tensor] = []
    metrics: dict[str, list[float]] = {}
    for number in range(num_microbatches):
        last = number == num_microbatches - 1
        if number >= len(microbatches):
            model.backward(_nothing(model.columns(placeholder(device), objective.outputs)), last=last)
            continue
        part = microbatches[number].to(device)
        columns = model.columns(part, objective.outputs)
        loss, sums = objective.loss(columns, part, scale)
        model.backward(loss if loss.requires_grad else loss + _nothing(columns), last=last)
        losses.append(loss.detach())
        for name, entry in sums.items():
            total = metrics.setdefault(name, [0.0, 0.0])
            total[0] += entry.value
            total[1] += entry.weight
    return (float(torch.stack(losses).double().sum()) if losses else 0.0), metrics


def _nothing(columns: Mapping[str, Tensor]) -> Tensor:
    """Return 0 that depends on the model, so that a backward pass takes part in every collective."""
    return torch.stack([column.sum() for column in columns.values()]).sum() * 0.0


def _check(batch: Batch, limits: Limits, columns: frozenset[str]) -> None:
    refuse_routes(batch)
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
            total = totals.setdefault(name, [0.0, 0.0])
            total[0] += value
            total[1] += weight
    return {name: Sum(value=value, weight=weight) for name, (value, weight) in totals.items()}
