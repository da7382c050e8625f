"""Learners with one defect each in what the roles are taught."""

from __future__ import annotations

from typing import Any

import attrs

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum, TrainReport
from areal_core.loop.learner import Learner, Update
from areal_core.loop.train_group import shares

from .part import broken


@broken("learner", "loop.update.minibatches")
class LosesTheLastMinibatch(Learner):
    """Leaves the last group of a batch out where it is cut."""

    def _minibatches(self, batch: Batch, version: int) -> list[Batch]:
        groups = batch.sequences["group"]
        if self._algorithm.minibatches > 1:
            batch = batch.select(groups != groups.max())
        return super()._minibatches(batch, version)


@broken("learner", "loop.update.minibatches")
class CutsThroughGroups(Learner):
    """Shares sequences out by their lengths alone."""

    def _minibatches(self, batch: Batch, version: int) -> list[Batch]:
        lengths, num_parts = batch.lengths.tolist(), self._algorithm.minibatches
        return [part for rows in shares(lengths, num_parts) for part in self._whole(batch.select(rows), version)]

    def _whole(self, batch: Batch, version: int) -> list[Batch]:
        return [batch.with_tokens(fresh=batch.tokens["versions"] == version)] if batch.num_sequences else []


@broken("learner", "loop.update.epochs")
class ThreeEpochsAreEnough(Learner):
    """Makes no epoch beyond the third."""

    async def update(self, batch: Batch, version: int) -> Update:
        self._algorithm = attrs.evolve(self._algorithm, epochs=min(self._algorithm.epochs, 3))
        return await super().update(batch, version)


class _WrittenOut(Learner):
    """An update step by step."""

    columns_again, critic_epochs = False, 99

    async def update(self, batch: Batch, version: int) -> Update:
        reports: list[TrainReport] = []
        for epoch in range(self._algorithm.epochs):
            if epoch == 0 or self.columns_again:
                batch, metrics = await self._columns(batch, version)
            for part in self._minibatches(batch, version):
                reports.append(await self.actor.train_step(part, self._objective))
                if self.critic is not None and self._critic_objective is not None and epoch < self.critic_epochs:
                    await self.critic.train_step(part, self._critic_objective)
        for group in filter(None, (self.actor, self.critic)):
            await group.set_version(version + 1)
        return Update(reports=reports, batch=batch, metrics=metrics)


@broken("learner", "loop.update.epochs")
class ColumnsOfEveryEpoch(_WrittenOut):
    """Computes values and the proximal policy again before each epoch, with weights that moved."""

    columns_again = True


@broken("learner", "loop.update.epochs", "loop.update.minibatches")
class CriticLearnsOnce(_WrittenOut):
    """Teaches the critic in the first epoch alone."""

    critic_epochs = 1


@broken("learner", "loop.update.before")
class ColumnsOfTheNextVersion(Learner):
    """Counts the step that is about to be made when it asks how old tokens are."""

    async def _columns(self, batch: Batch, version: int) -> tuple[Batch, dict[str, Sum]]:
        return await super()._columns(batch, version + 1)


class _Before:
    """A role that says what it would have said before its last update."""

    def __init__(self, role: Any) -> None:
        self._role, self._lessons = role, list[Batch]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    async def forward(self, batch: Batch, output: Output) -> Any:
        lessons, self._role.lessons = self._role.lessons, self._lessons
        said = await self._role.forward(batch, output)
        self._lessons, self._role.lessons = list(lessons), lessons
        return said


@broken("learner", "loop.update.before")
class ProximalOfTheUpdateBefore(Learner):
    """Takes the proximal policy's log-probs one version late."""

    def __init__(self, *given: Any, **roles: Any) -> None:
        super().__init__(*given, **roles)
        self.actor: Any = _Before(self.actor)
