"""One batch of rows into one version of the model, and the same numbers of held-out rows.

Knows: which columns a kind needs before its step, and which model computes them.
Does not know: where rows come from, or the formulas (`preference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode
from areal_core.contract.train import ObjectiveSpec, Output, Sum
from areal_core.loop.learner import Update
from areal_core.loop.train_group import TrainGroup
from areal_supervised.preference import Formula, compare


class Method(Protocol):
    """What a kind computes of a batch. `loss` is among the sums of `measured`."""

    async def prepared(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> tuple[Batch, Sums]:
        """Return the batch with the columns its objective needs, and what is known already."""

    async def measured(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> Sums:
        """Return the numbers of a batch that is not trained on."""


Sums = dict[str, Sum]


class Imitation:
    """Negative log-likelihood, in nats per token; the objective computes it itself."""

    async def prepared(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> tuple[Batch, Sums]:
        """Return the batch as it is."""
        return batch, {}

    async def measured(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> Sums:
        """Return the loss per learned token."""
        logprobs, mask = await actor.forward(batch, Output.LOGPROBS), batch.tokens["loss_mask"]
        return {"loss": Sum(value=-float(logprobs[mask].double().sum()), weight=float(mask.sum()))}


class Comparison:
    """A preference loss on log-probs or values, compared with those of a reference model where there is one."""

    def __init__(self, formula: Formula, output: Output) -> None:
        self._formula, self._output = formula, output

    async def prepared(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> tuple[Batch, Sums]:
        """Return the batch with `slope` and `value`, and how its pairs are judged."""
        before = None if reference is None else await reference.forward(batch, self._output)
        return compare(batch, await actor.forward(batch, self._output), before, self._formula)

    async def measured(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> Sums:
        """Return how the pairs are judged."""
        return (await self.prepared(actor, reference, batch))[1]


class RowLearner:
    """Satisfies `areal_core.loop.learner.Learns`: one optimizer step per batch of rows."""

    def __init__(
        self, actor: TrainGroup, objective: ObjectiveSpec, method: Method, reference: TrainGroup | None = None
    ) -> None:
        self.actor, self.reference = actor, reference
        self.critic: TrainGroup | None = None
        self._method, self._objective = method, objective

    async def update(self, batch: Batch, version: int) -> Update:
        """Make one optimizer step; what is trained becomes `version + 1`."""
        batch, metrics = await self._method.prepared(self.actor, self.reference, batch)
        report = await self.actor.train_step(batch, self._objective)
        await self.actor.set_version(version + 1)
        metrics = {**report.metrics, **metrics}
        if (peak := self.actor.info.details.get("peak_tokens_per_s")) is not None:
            metrics["peak_share"] = Sum(value=batch.num_tokens, weight=float(peak) * report.seconds)
        return Update(reports=[report], batch=batch, metrics=metrics)

    async def measure(self, batch: Batch) -> Mapping[str, Sum]:
        """Return the numbers of a batch that is not trained on."""
        return await self._method.measured(self.actor, self.reference, batch)


class HeldOutRows:
    """Satisfies `areal_core.loop.train_loop.Scores`: the numbers of rows that are never trained on."""

    def __init__(self, learner: RowLearner, episodes: Sequence[Episode], size: int, left_out: int) -> None:
        """Measure `size` episodes at a time; `left_out` more rows were too long."""
        self._learner, self._episodes, self._size, self._left_out = learner, episodes, size, left_out

    async def score(self) -> tuple[Mapping[str, float], int]:
        """Return each number's mean, and how many rows are left out of it."""
        sums: dict[str, tuple[float, float]] = {}
        for start in range(0, len(self._episodes), self._size):
            batch = Batch.pack(self._episodes[start : start + self._size])
            for name, more in (await self._learner.measure(batch)).items():
                value, weight = sums.get(name, (0.0, 0.0))
                sums[name] = value + more.value, weight + more.weight
        return {name: value / weight for name, (value, weight) in sums.items() if weight}, self._left_out
