"""From the algorithm's settings to what the workers are sent, and which settings cannot go together.

Knows: how the parts of `algorithm:` bear on each other and on the roles of the run.
Does not know: tensors; importing this costs no torch. An objective's own options are checked by its config class.
"""

from __future__ import annotations

from typing import Any

from areal_core.algorithms.config import (
    AdvantageConfig,
    AlgorithmConfig,
    BehaviourConfig,
    BehaviourWeight,
    EstimatorConfig,
    NormConfig,
    NormLevel,
    Proximal,
)
from areal_core.contract.errors import PlanError
from areal_core.contract.train import ObjectiveSpec
from areal_core.plugins.structure import unstructure

_SHARED = ("proximal", "behaviour")
_FADING = ("gamma", "lam")
_DEFAULT = AlgorithmConfig()


def objective_spec(config: AlgorithmConfig) -> ObjectiveSpec:
    """Return the actor's objective as it travels: plain dicts, strings and numbers.

    `algorithm.proximal` and `algorithm.behaviour` become options of the objective, where they differ
    from their defaults: an objective that knows nothing of them refuses them by name instead of
    ignoring them. Raises nothing.
    """
    options: dict[str, Any] = unstructure(config.objective.options)
    shared = {name: getattr(config, name) for name in _SHARED if getattr(config, name) != getattr(_DEFAULT, name)}
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
    faded = {n: getattr(advantages, n) for n in _FADING if getattr(advantages, n) != getattr(_DEFAULT.advantages, n)}
    return EstimatorConfig(name=advantages.estimator.name, options={**advantages.estimator.options, **faded})


def check(
    config: AlgorithmConfig, *, has_reference: bool, has_critic: bool, max_new_tokens: int | None = None
) -> list[str]:
    """Refuse settings that cannot go together; return warnings for those that can but look unintended.

    Called while planning, before any model loads.

    Raises:
        PlanError: what, why, and which key to change.
    """
    _check_objective(config)
    _check_behaviour(config.proximal, config.behaviour)
    _check_norm("reward_norm", config.advantages.reward_norm)
    _check_norm("advantage_norm", config.advantages.advantage_norm)
    _check_overlong(config.advantages, max_new_tokens)
    _check_reference(config.advantages, has_reference)
    return _warnings(config, has_reference=has_reference, has_critic=has_critic)


def _check_objective(config: AlgorithmConfig) -> None:
    for name in _SHARED:
        if name in config.objective.options:
            raise PlanError(
                f"algorithm.objective.options.{name} is set",
                why=f"algorithm.{name} also decides what is computed before the objective; two places could disagree",
                fix=f"set algorithm.{name} instead",
            )
    for name in _FADING:
        if name in config.advantages.estimator.options:
            raise PlanError(
                f"algorithm.advantages.estimator.options.{name} is set",
                why=f"algorithm.advantages.{name} becomes that option; two places could disagree",
                fix=f"set algorithm.advantages.{name} instead",
            )


def _check_behaviour(proximal: Proximal, behaviour: BehaviourConfig) -> None:
    if behaviour.mode is BehaviourWeight.NONE:
        return
    if proximal is Proximal.BEHAVIOUR:
        raise PlanError(
            f"algorithm.behaviour.mode is {behaviour.mode.value} with algorithm.proximal behaviour",
            why="the weight is proximal / behaviour, here exactly 1 for every token: nothing would be corrected",
            fix="set algorithm.proximal to recompute or loglinear, or algorithm.behaviour.mode to none",
        )
    if behaviour.lower >= behaviour.upper:
        raise PlanError(
            f"algorithm.behaviour.lower {behaviour.lower} is not below upper {behaviour.upper}",
            why="no weight lies between the bounds",
            fix="set lower below 1 and upper above 1, for example lower: 0.0, upper: 5.0",
        )
    if not behaviour.lower <= 1.0 <= behaviour.upper:
        raise PlanError(
            f"algorithm.behaviour bounds [{behaviour.lower}, {behaviour.upper}] leave out 1",
            why="1 is the weight of fresh data, which needs no correction",
            fix="set lower below 1 and upper above 1, for example lower: 0.0, upper: 5.0",
        )


def _check_norm(name: str, norm: NormConfig) -> None:
    if norm.leave_one_out and norm.mean is NormLevel.NONE:
        raise PlanError(
            f"algorithm.advantages.{name}.leave_one_out without a mean",
            why="it says which values the mean is of, and mean is none",
            fix=f"set algorithm.advantages.{name}.mean to group or batch",
        )


def _check_overlong(advantages: AdvantageConfig, max_new_tokens: int | None) -> None:
    tokens = advantages.overlong.tokens
    if max_new_tokens is not None and tokens > max_new_tokens:
        raise PlanError(
            f"algorithm.advantages.overlong.tokens {tokens} exceeds max_new_tokens {max_new_tokens}",
            why="the penalty would fall on the empty output already",
            fix=f"set it below {max_new_tokens}, for example {max(max_new_tokens // 4, 1)}",
        )


def _check_reference(advantages: AdvantageConfig, has_reference: bool) -> None:
    if advantages.kl.coefficient > 0.0 and not has_reference:
        raise PlanError(
            f"algorithm.advantages.kl.coefficient is {advantages.kl.coefficient} and there is no reference model",
            why="a KL penalty needs log-probs of a reference model",
            fix="add a `reference:` section, or set algorithm.advantages.kl.coefficient to 0",
        )


def _warnings(config: AlgorithmConfig, *, has_reference: bool, has_critic: bool) -> list[str]:
    found = []
    advantages = config.advantages
    if has_reference and advantages.kl.coefficient == 0.0:
        found.append("reference: the model is used for metrics only; algorithm.advantages.kl.coefficient is 0")
    if config.minibatches == 1 and config.proximal is Proximal.RECOMPUTE:
        if config.behaviour.mode is BehaviourWeight.NONE:
            found.append(
                "algorithm.proximal recompute with minibatches 1 and behaviour.mode none: the ratio is exactly 1, "
                "stale data is not corrected, and a forward pass is spent; set a behaviour weight or more minibatches"
            )
        else:
            found.append("algorithm.proximal recompute with minibatches 1: the ratio is exactly 1 and never clipped")
    if not has_critic and advantages.gamma * advantages.lam < 1.0:
        found.append(
            f"gamma {advantages.gamma} * lam {advantages.lam} without a critic: the reward fades over the tokens "
            "before the last; set both to 1, or add a `critic:` section"
        )
    if has_critic and advantages.gamma * advantages.lam == 1.0 and advantages.reward_norm.mean is NormLevel.GROUP:
        found.append("critic: with a group baseline in reward_norm the critic learns normalised rewards around 0")
    return found
