"""What a batch of rollouts is given before the first minibatch: the extension `columns` of the core.

Knows: the order: the proximal policy, whom a second moment keeps, then advantages.
Does not know: who computed the columns of other models, or who trains.
"""

from __future__ import annotations

from torch import Tensor

from areal_algorithms.advantages import compute_advantages
from areal_algorithms.proximal import add_proximal
from areal_algorithms.ratios import second_moment_kept
from areal_core.algorithms.config import AlgorithmConfig, BehaviourWeight
from areal_core.algorithms.plan import estimator_spec
from areal_core.contract.batch import Batch
from areal_core.contract.estimator import Estimator
from areal_core.contract.train import Sum
from areal_core.plugins.registry import Registry


class Columns:
    """The algorithm's part of a step that is done once, on the whole batch."""

    def __init__(self, config: AlgorithmConfig, estimator: Estimator, *, max_new_tokens: int) -> None:
        self._config, self._estimator, self._max_new_tokens = config, estimator, max_new_tokens

    def __call__(
        self, batch: Batch, version: int, forward_logprobs: Tensor | None = None
    ) -> tuple[Batch, dict[str, Sum]]:
        """Return the batch with what the objectives read, and metrics that add over batches.

        Raises:
            BatchError: see `add_proximal` and `compute_advantages`.
        """
        batch = add_proximal(batch, self._config, version, forward_logprobs)
        if self._config.behaviour.mode is BehaviourWeight.SECOND_MOMENT:
            proximal, behaviour, mask = (batch.tokens[n] for n in ("proximal_logprobs", "logprobs", "loss_mask"))
            kept = second_moment_kept(proximal, behaviour, mask, self._config.behaviour.threshold)
            batch = batch.with_tokens(behaviour_kept=kept)
        advantages = self._config.advantages
        return compute_advantages(batch, advantages, self._estimator, max_new_tokens=self._max_new_tokens)


def make_columns(config: AlgorithmConfig, registry: Registry, *, max_new_tokens: int) -> Columns:
    """Build what `areal_core.plugins.extensions.MakeColumns` describes; the registry knows the estimator."""
    spec = estimator_spec(config)
    built = registry.build("estimator", spec.name, spec.options, "algorithm.advantages.estimator.options")
    assert callable(built), f"estimator {spec.name!r} cannot be called"
    return Columns(config, built, max_new_tokens=max_new_tokens)
