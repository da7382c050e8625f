"""From the algorithm's settings to what the workers are sent.

Knows: which settings become options of the objective and of the estimator.
Does not know: tensors, or which settings cannot go together (extension `algorithm_checks`).
"""

from __future__ import annotations

from typing import Any

from areal_core.algorithms.config import AlgorithmConfig, EstimatorConfig
from areal_core.contract.train import ObjectiveSpec
from areal_core.plugins.structure import unstructure

SHARED = ("proximal", "behaviour", "kl_loss")
"""Keys of `algorithm:` that become options of the objective."""
FADING = ("gamma", "lam")
"""Keys of `algorithm.advantages` that become options of the estimator."""
_DEFAULT = AlgorithmConfig()


def objective_spec(config: AlgorithmConfig, max_new_tokens: int | None = None) -> ObjectiveSpec:
    """Return the actor's objective as it travels: plain dicts, strings and numbers.

    `algorithm.proximal`, `algorithm.behaviour` and `algorithm.kl_loss` become options of the objective, where they
    differ from their defaults: an objective that knows nothing of them refuses them by name instead of ignoring
    them. A loss over a constant (`normalizer: constant`) is over `max_new_tokens`, if nothing else is said.
    """
    options: dict[str, Any] = unstructure(config.objective.options)
    if options.get("normalizer") == "constant" and max_new_tokens is not None:
        options.setdefault("constant_tokens", max_new_tokens)
    shared = {name: getattr(config, name) for name in SHARED if getattr(config, name) != getattr(_DEFAULT, name)}
    return ObjectiveSpec(name=config.objective.name, config={**options, **unstructure(shared)})


def critic_spec(config: AlgorithmConfig) -> ObjectiveSpec:
    """Return the critic's objective as it travels."""
    return ObjectiveSpec(name=config.critic_objective.name, config=unstructure(config.critic_objective.options))


def estimator_spec(config: AlgorithmConfig) -> EstimatorConfig:
    """Return the estimator with all its options.

    `advantages.gamma` and `advantages.lam` become options of it where they differ from their defaults: an estimator
    that knows nothing of them refuses them by name.
    """
    advantages = config.advantages
    faded = {n: getattr(advantages, n) for n in FADING if getattr(advantages, n) != getattr(_DEFAULT.advantages, n)}
    return EstimatorConfig(name=advantages.estimator.name, options={**advantages.estimator.options, **faded})
