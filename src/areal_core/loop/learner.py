"""One batch of episodes into one version of the policy: the algorithm, in order.

Knows: which columns are computed by whom, in which order.
Does not know: where episodes come from, or how new weights leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from attrs import frozen

from areal_core.algorithms.config import AlgorithmConfig
from areal_core.algorithms.sums import add_sums
from areal_core.contract.batch import Batch
from areal_core.contract.train import ObjectiveSpec, Output, Sum, TrainReport
from areal_core.loop.aside import aside
from areal_core.loop.train_group import TrainGroup, shares
from areal_core.plugins.extensions import Columns


@frozen(kw_only=True)
class Update:
    """What one call of `Learner.update` did, with a report per minibatch. `metrics` are sums, shown as value / weight.

    `batch` is what was trained on, with every column that was computed for it.
    """

    reports: Sequence[TrainReport]
    batch: Batch
    metrics: Mapping[str, Sum]


class Learns(Protocol):
    """The training roles of a run of any kind, and what drives them."""

    actor: TrainGroup
    critic: TrainGroup | None
    reference: TrainGroup | None

    async def update(self, batch: Batch, version: int) -> Update:
        """Train on one batch with the weights at `version`; what is trained becomes `version + 1`."""


class Learner:
    """The training roles of a run and the algorithm that drives them."""

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        objective: ObjectiveSpec,
        actor: TrainGroup,
        columns: Columns,
        *,
        reference: TrainGroup | None = None,
        critic: TrainGroup | None = None,
        critic_objective: ObjectiveSpec | None = None,
        ratios: bool = False,
    ) -> None:
        self.actor, self.reference, self.critic = actor, reference, critic
        self._algorithm = algorithm
        self._objective = objective
        self._critic_objective = critic_objective
        self._make_columns = columns
        self._ratios = ratios and not algorithm.needs_forward

    async def update(self, batch: Batch, version: int) -> Update:
        """Train on one batch with the policy at `version`; what is trained becomes `version + 1`.

        The reference's log-probs, the critic's values and the proximal log-probs are
        computed first, with the weights as they are; then advantages; then one optimizer
        step per minibatch and epoch, every group whole in one minibatch.
        """
        batch, metrics = await self._columns(batch, version)
        reports: list[TrainReport] = []
        parts = await aside(batch.num_tokens, partial(self._minibatches, batch, version))
        for part in parts * self._algorithm.epochs:
            if reports and not self._algorithm.needs_forward:  # the trainer's weights are no longer the engine's
                part = part.with_tokens(fresh=torch.zeros_like(part.tokens["fresh"]))
            reports.append(await self.actor.train_step(part, self._objective))
            add_sums(metrics, reports[-1].metrics)
            if self.critic is not None and self._critic_objective is not None:
                critic_report = await self.critic.train_step(part, self._critic_objective)
                add_sums(metrics, {f"critic/{name}": value for name, value in critic_report.metrics.items()})
                add_sums(metrics, {"critic/grad_norm": Sum(value=critic_report.grad_norm, weight=1.0)})
        if (peak := self.actor.info.details.get("peak_tokens_per_s")) is not None:
            metrics["peak_share"] = Sum(value=batch.num_tokens, weight=float(peak) * sum(r.seconds for r in reports))
        for group in filter(None, (self.actor, self.critic)):
            await group.set_version(version + 1)
        return Update(reports=reports, batch=batch, metrics=metrics)

    async def _columns(self, batch: Batch, version: int) -> tuple[Batch, dict[str, Sum]]:
        if self.reference is not None:
            batch = batch.with_tokens(reference_logprobs=await self.reference.forward(batch, Output.LOGPROBS))
        if self.critic is not None:
            batch = batch.with_tokens(values=await self.critic.forward(batch, Output.VALUES))
        proximal = await self.actor.forward(batch, Output.LOGPROBS) if self._algorithm.needs_forward else None
        if self._ratios:
            batch = batch.with_tokens(policy_logprobs=await self.actor.forward(batch, Output.LOGPROBS))
        make = partial(self._make_columns, batch, version, proximal)
        batch, metrics = await aside(batch.num_tokens, make)
        return batch, dict(metrics)

    def _minibatches(self, batch: Batch, version: int) -> list[Batch]:
        batch = batch.with_tokens(fresh=batch.tokens["loss_mask"] & (batch.tokens["versions"] == version))
        if self._algorithm.minibatches == 1:
            return [batch]
        parts = shares(batch.lengths.tolist(), self._algorithm.minibatches, batch.sequences["group"].tolist())
        made = [batch.select(rows) for rows in parts if rows]
        return [part for part in made if bool(part.tokens["loss_mask"].any())] or made
