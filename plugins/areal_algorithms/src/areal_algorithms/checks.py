"""Which settings of an algorithm cannot go together: the extension `algorithm_checks` of the core.

Knows: how the parts of `algorithm:` bear on each other and on the roles of the run.
Does not know: tensors; importing this costs no torch. An objective's own options are checked by its config class.
"""

from __future__ import annotations

from areal_algorithms.presets import check_roles
from areal_core.algorithms.config import (
    AdvantageConfig,
    Aggregate,
    AlgorithmConfig,
    BehaviourConfig,
    BehaviourMetric,
    BehaviourWeight,
    EstimatorConfig,
    KLEstimator,
    NormConfig,
    NormLevel,
    Proximal,
    RatioLevel,
)
from areal_core.algorithms.plan import FADING, SHARED
from areal_core.contract.errors import PlanError

_STALE = 4
"""Versions from which on an unbounded drift is worth a warning."""
_WITHOUT_VALUES = ("group_mean", "leave_one_out", "reinforce++", "reinforce++_baseline")
_NOT_REWARDED = {
    "sft": "set kind: sft, which imitates the rows of its data; or another objective: areal algorithms",
    "value": "the critic's is algorithm.critic_objective; set the policy's to ppo: areal algorithms",
    "teacher_kl": "set kind to distill and options.top_k; or another objective: areal algorithms",
    "linear": "set kind to dpo, ipo or reward_model; or another objective: areal algorithms",
}
"""Objectives of other kinds of run and of other roles -> what was probably meant."""


def check(
    config: AlgorithmConfig,
    *,
    has_reference: bool,
    has_critic: bool,
    max_new_tokens: int | None = None,
    max_staleness: int = 0,
) -> list[str]:
    """Refuse settings that cannot go together; return warnings for those that can but look unintended.

    Called while planning, before any model loads.

    Raises:
        PlanError: what, why, and which key to change.
    """
    if config.preset:
        has = {"critic": has_critic, "reference": has_reference}
        check_roles(config.preset, frozenset(role for role, there in has.items() if there))
    _check_objective(config)
    _check_behaviour(config.proximal, config.behaviour)
    _check_kl_loss(config, has_reference)
    _check_critic(config.advantages.estimator, has_critic)
    _check_norm("reward_norm", config.advantages.reward_norm)
    _check_norm("advantage_norm", config.advantages.advantage_norm)
    _check_overlong(config.advantages, max_new_tokens)
    _check_reference(config.advantages, has_reference)
    drift = _drift(config, max_staleness)
    return [*drift, *_warnings(config, has_reference=has_reference, has_critic=has_critic)]


def _check_objective(config: AlgorithmConfig) -> None:
    if fix := _NOT_REWARDED.get(config.objective.name):
        raise PlanError(
            f"algorithm.objective.name is {config.objective.name}",
            why="it reads no advantages: rewards would be computed and change nothing",
            fix=fix,
        )
    for name in SHARED:
        if name in config.objective.options:
            raise PlanError(
                f"algorithm.objective.options.{name} is set",
                why=f"algorithm.{name} also decides what is computed before the objective; two places could disagree",
                fix=f"set algorithm.{name} instead",
            )
    for name in FADING:
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
    if behaviour.mode is BehaviourWeight.SECOND_MOMENT:
        if proximal is not Proximal.RECOMPUTE:
            raise PlanError(
                f"algorithm.behaviour.mode is second_moment with algorithm.proximal {proximal.value}",
                why="who is dropped is decided over the whole batch, before the first minibatch, by a forward pass",
                fix="set algorithm.proximal to recompute",
            )
        return
    _check_bounds(behaviour)
    _check_aggregate(behaviour)


def _check_bounds(behaviour: BehaviourConfig) -> None:
    (lower, upper), ratio = behaviour.bounds, behaviour.metric is BehaviourMetric.RATIO
    fresh, example = (1, "lower: 0.0, upper: 5.0") if ratio else (0, "upper: 0.1 and no lower")
    if lower >= upper:
        raise PlanError(
            f"algorithm.behaviour.lower {lower} is not below upper {upper}",
            why="no weight lies between the bounds",
            fix=f"set lower below {fresh} and upper above it, for example {example}",
        )
    if ratio and lower < 0.0:
        raise PlanError(
            f"algorithm.behaviour.lower {lower} is below 0", why="no ratio is", fix="set it to 0, or leave it out"
        )
    if not lower <= fresh <= upper:
        raise PlanError(
            f"algorithm.behaviour bounds [{lower}, {upper}] leave out {fresh}",
            why=f"{fresh} is the {behaviour.metric.value} of fresh data, which needs no correction",
            fix=f"set lower below {fresh} and upper above it, for example {example}",
        )


def _check_aggregate(behaviour: BehaviourConfig) -> None:
    if behaviour.mode is BehaviourWeight.CLAMP and behaviour.metric is not BehaviourMetric.RATIO:
        raise PlanError(
            f"algorithm.behaviour.mode is clamp with metric {behaviour.metric.value}",
            why="a weight can be held inside bounds, an estimate of a KL only be too large",
            fix="set algorithm.behaviour.metric to ratio, or mode to mask",
        )
    if behaviour.mode is BehaviourWeight.CLAMP and behaviour.aggregate is Aggregate.MAX:
        raise PlanError(
            "algorithm.behaviour.mode is clamp with aggregate max",
            why="the token furthest off says which sequences to drop, and is no weight of a sequence",
            fix="set algorithm.behaviour.aggregate to mean or sum, or mode to mask",
        )
    if behaviour.level is RatioLevel.TOKEN and behaviour.aggregate is not Aggregate.MEAN:
        raise PlanError(
            f"algorithm.behaviour.aggregate is {behaviour.aggregate.value} at level token",
            why="it says how the tokens of a sequence become one number",
            fix="set algorithm.behaviour.level to sequence, or leave aggregate out",
        )


def _check_kl_loss(config: AlgorithmConfig, has_reference: bool) -> None:
    if config.kl_loss.coefficient == 0.0:
        return
    if not has_reference:
        raise PlanError(
            f"algorithm.kl_loss.coefficient is {config.kl_loss.coefficient} and there is no reference model",
            why="a KL needs log-probs of a reference model",
            fix="add a `reference:` section, or set algorithm.kl_loss.coefficient to 0",
        )
    if config.kl_loss.estimator is KLEstimator.K1:
        raise PlanError(
            "algorithm.kl_loss.estimator is k1",
            why="in a loss its gradient is that of the log-probability, which is 0 on average: noise, and no penalty",
            fix="set it to k2 (the gradient of KL(policy || reference)) or k3 (of KL(reference || policy)), "
            "or penalise the reward: algorithm.advantages.kl",
        )


def _check_critic(estimator: EstimatorConfig, has_critic: bool) -> None:
    if has_critic and estimator.name in _WITHOUT_VALUES:
        raise PlanError(
            f"critic: with algorithm.advantages.estimator {estimator.name}",
            why="the estimator reads no values: the critic would be trained and never asked",
            fix="set algorithm.advantages.estimator.name to gae or per_turn, or leave `critic:` out",
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
    if tokens and advantages.overlong.share:
        raise PlanError(
            f"algorithm.advantages.overlong has tokens {tokens} and share {advantages.overlong.share}",
            why="each says over how many tokens the penalty falls",
            fix="set one of them to 0",
        )
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


def _drift(config: AlgorithmConfig, max_staleness: int) -> list[str]:
    """Warn where the clip is about a centre that follows the policy, and no weight looks back at who sampled."""
    weighted = config.behaviour.mode is not BehaviourWeight.NONE
    if weighted or config.proximal is Proximal.BEHAVIOUR or config.updates > 1:
        return []
    if max_staleness >= _STALE:
        return [
            f"algorithm.proximal {config.proximal.value} with minibatches 1, epochs 1 and behaviour.mode none at "
            f"rollout.max_staleness {max_staleness}: nothing bounds how far the policy gets from the one that sampled; "
            "runs so set learned less; set algorithm.behaviour.mode to clamp, or algorithm.proximal to behaviour"
        ]
    if config.proximal is Proximal.LOGLINEAR:
        return []
    return [
        "algorithm.proximal recompute with minibatches 1 and behaviour.mode none: the ratio is exactly 1, "
        "stale data is not corrected, and a forward pass is spent; set a behaviour weight or more minibatches"
    ]


def _warnings(config: AlgorithmConfig, *, has_reference: bool, has_critic: bool) -> list[str]:
    found = []
    advantages = config.advantages
    if has_reference and advantages.kl.coefficient == config.kl_loss.coefficient == 0.0:
        found.append(
            "reference: the model is used for metrics only; algorithm.advantages.kl.coefficient "
            "and algorithm.kl_loss.coefficient are 0"
        )
    corrected = config.behaviour.mode in (BehaviourWeight.CLAMP, BehaviourWeight.MASK)
    if config.updates == 1 and config.proximal is Proximal.RECOMPUTE and corrected:
        found.append("algorithm.proximal recompute with minibatches 1: the ratio is exactly 1 and never clipped")
    if advantages.estimator.name in _WITHOUT_VALUES and advantages.reward_norm.mean is not NormLevel.NONE:
        found.append(
            f"algorithm.advantages.reward_norm is set, and the estimator {advantages.estimator.name} "
            "normalises by itself: rewards are normalised twice"
        )
    for key in ("reward_norm", "advantage_norm"):
        norm: NormConfig = getattr(advantages, key)
        if norm != NormConfig() and norm.mean is norm.std is NormLevel.NONE:
            found.append(
                f"algorithm.advantages.{key} does nothing: its mean and std are none; name them too, for example "
                f"{{mean: group, std: group}}, for a section given in part takes none of the defaults of the whole"
            )
    if not has_critic and advantages.gamma * advantages.lam < 1.0:
        found.append(
            f"gamma {advantages.gamma} * lam {advantages.lam} without a critic: the reward fades over the tokens "
            "before the last; set both to 1, or add a `critic:` section"
        )
    if has_critic and advantages.gamma * advantages.lam == 1.0 and advantages.reward_norm.mean is NormLevel.GROUP:
        found.append("critic: with a group baseline in reward_norm the critic learns normalised rewards around 0")
    return found
