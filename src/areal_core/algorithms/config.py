"""Settings of the asynchronous PPO family, as they stand under `algorithm:` in a run's yaml.

Knows: every knob of the algorithm, its default and its meaning.
Does not know: how any of it is computed, or who runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import field, frozen, validators


class Proximal(StrEnum):
    """Where the log-probs of the proximal policy (the centre of the clip) come from."""

    BEHAVIOUR = "behaviour"
    """The sampling log-probs themselves: plain PPO. Nothing is computed."""
    RECOMPUTE = "recompute"
    """One forward pass of the trainer before the first minibatch: decoupled PPO (AReaL, arXiv 2505.24298)."""
    LOGLINEAR = "loglinear"
    """Between behaviour and current policy by token staleness, no forward pass (A-3PO, arXiv 2512.06547)."""


class BehaviourWeight(StrEnum):
    """What is done with w = proximal / behaviour, the importance weight of stale data."""

    NONE = "none"
    CLAMP = "clamp"
    """w is held inside [lower, upper]."""
    MASK = "mask"
    """Tokens (or sequences) whose `metric` is outside [lower, upper] leave the loss; the normaliser counts them."""
    SECOND_MOMENT = "second_moment"
    """Of the whole batch, tokens furthest off leave the loss until the mean of (log w)^2 is at most `threshold`."""


class BehaviourMetric(StrEnum):
    """What of the step from behaviour to proximal policy is held against the bounds."""

    RATIO = "ratio"
    """w itself."""
    K1 = "k1"
    """-log w, an estimate of KL(behaviour || proximal)."""
    K2 = "k2"
    """(log w)^2 / 2"""
    K3 = "k3"
    """w - 1 - log w"""


class Aggregate(StrEnum):
    """How the tokens of a sequence become one number. Of a ratio, its logarithm is aggregated."""

    MEAN = "mean"
    """Of a ratio: the geometric mean, as in GSPO."""
    SUM = "sum"
    """Of a ratio: the product, the ratio of the whole sequence's probabilities."""
    MAX = "max"
    """The token furthest off, on either side. Decides only who is dropped."""


class RatioLevel(StrEnum):
    """Whether a ratio is taken per token or once per sequence (mean log-ratio, as in GSPO)."""

    TOKEN = "token"
    SEQUENCE = "sequence"


class NormLevel(StrEnum):
    """Over what a statistic is taken."""

    NONE = "none"
    BATCH = "batch"
    GROUP = "group"


class KLEstimator(StrEnum):
    """Schulman's estimators of KL(policy || reference) from one sample."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


@frozen(kw_only=True)
class NormConfig:
    """(x - mean) / (std + eps). `leave_one_out` takes the mean of the others; the std is about the plain mean.

    `unbiased` divides the variance by n - 1. Values that all agree (a group of one does) are exactly
    0 once centred, and where they set the scale the divisor is 1, never eps.
    """

    mean: NormLevel = field(default=NormLevel.NONE)
    """Whose mean is taken off."""
    std: NormLevel = field(default=NormLevel.NONE)
    """Whose standard deviation it is divided by."""
    leave_one_out: bool = False
    """Take off the mean of the others."""
    unbiased: bool = True
    """Divide the variance by n - 1."""
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """Added to the standard deviation."""


@frozen(kw_only=True)
class KLConfig:
    """KL against the reference model, as a penalty in the reward. Needs `reference:`."""

    coefficient: float = field(default=0.0, validator=validators.ge(0.0))
    """Times the KL of each token, off its reward; 0 turns it off."""
    estimator: KLEstimator = KLEstimator.K1
    """Schulman's k1, k2 or k3, of one sample."""


@frozen(kw_only=True)
class KLLossConfig:
    """KL(policy || reference) as a term of the loss, with gradient. Needs `reference:`.

    k2 has the gradient of that KL; that of k3 is the one of KL(reference || policy); k1 has none on average.
    """

    coefficient: float = field(default=0.0, validator=validators.ge(0.0))
    """Times the KL of each token, on the loss; 0 turns it off."""
    estimator: KLEstimator = KLEstimator.K2
    """Schulman's k1, k2 or k3, of one sample."""


@frozen(kw_only=True)
class OverlongConfig:
    """A soft penalty on long outputs (DAPO, arXiv 2503.14476).

    Falls from 0 to -factor over the last `tokens` of the budget of new tokens, or over the last `share` of it; both 0
    turn it off.
    """

    tokens: int = field(default=0, validator=validators.ge(0))
    """The last so many tokens of the budget; 0 leaves it to `share`."""
    share: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """The last share of the budget, instead of `tokens`; both 0 turn it off."""
    factor: float = field(default=1.0, validator=validators.ge(0.0))
    """The penalty at its end."""

    def over(self, max_new_tokens: int) -> int:
        """Return over how many tokens it falls; 0 is no penalty."""
        return self.tokens or round(self.share * max_new_tokens)


@frozen(kw_only=True)
class EstimatorConfig:
    """Which estimator, by registered name, and its own options; `areal backends --role estimator` lists them."""

    name: str = "gae"
    """Registered name."""
    options: Mapping[str, Any] = field(factory=dict, metadata={"role": "estimator", "named_by": "name"})
    """The estimator's own keys: `areal backends NAME` shows them."""


GROUP_ESTIMATORS = ("group_mean", "leave_one_out", "reinforce++_baseline")
"""Estimators that compare the answers to one prompt."""
SCALED_BY_NORM = ("gae", "per_turn")
"""Estimators that take rewards as they are: without `reward_norm` these get the mean and std of their group."""


@frozen(kw_only=True)
class AdvantageConfig:
    """From rewards to advantages, in this order.

    Overlong penalty, (r + bias) * scale, clip, zero if truncated, reward norm, KL, estimator, advantage norm.
    """

    estimator: EstimatorConfig = EstimatorConfig()
    reward_bias: float = 0.0
    """Added to every reward."""
    reward_scale: float = 1.0
    """Times every reward, after the bias."""
    reward_clip: float = field(default=20.0, validator=validators.gt(0.0))
    """Rewards end at plus and minus this."""
    overlong: OverlongConfig = OverlongConfig()
    reward_norm: NormConfig = field()
    """By default group mean and std for the estimators `gae` and `per_turn`, nothing for others."""
    advantage_norm: NormConfig = NormConfig()
    """Of the advantages."""
    kl: KLConfig = KLConfig()
    gamma: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """Discount per token."""
    lam: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """GAE's lambda: 1 trusts rewards alone, 0 the critic alone."""
    zero_truncated: bool = False
    """Give truncated trajectories (stop reason `length` or `aborted`) the reward 0, before any normalisation."""
    mask_truncated: bool = False
    """Leave truncated trajectories out of the loss; their rewards still count in the baseline of their group."""

    @reward_norm.default
    def _of_the_estimator(self) -> NormConfig:
        level = NormLevel.GROUP if self.estimator.name in SCALED_BY_NORM else NormLevel.NONE
        return NormConfig(mean=level, std=level)


@frozen(kw_only=True)
class BehaviourConfig:
    """The behaviour importance weight: one explicit choice, not a side effect of another."""

    mode: BehaviourWeight = BehaviourWeight.NONE
    """What is done with w = proximal / behaviour."""
    metric: BehaviourMetric = BehaviourMetric.RATIO
    """What `mask` holds against the bounds; `clamp` takes the ratio."""
    level: RatioLevel = RatioLevel.TOKEN
    """Per token, or once per sequence."""
    aggregate: Aggregate = Aggregate.MEAN
    """At level `sequence`."""
    upper: float = field(default=5.0, validator=validators.gt(0.0))
    """The highest w, or KL."""
    lower: float | None = None
    """The lowest. None is 0 for a ratio, no bound for a KL."""
    threshold: float = field(default=0.04, validator=validators.gt(0.0))
    """Of mode `second_moment` (M2PO, arXiv 2510.01161)."""

    @property
    def bounds(self) -> tuple[float, float]:
        """What lies inside, both ends included."""
        none = 0.0 if self.metric is BehaviourMetric.RATIO else float("-inf")
        return none if self.lower is None else self.lower, self.upper


@frozen(kw_only=True)
class ObjectiveConfig:
    """Which objective, by registered name, and its own options; `areal backends --role objective` lists them."""

    name: str = "ppo"
    """Registered name."""
    options: Mapping[str, Any] = field(factory=dict, metadata={"role": "objective", "named_by": "name"})
    """The objective's own keys: `areal backends NAME` shows them."""


@frozen(kw_only=True)
class CriticObjectiveConfig(ObjectiveConfig):
    """The same for the critic: options without a name are those of `value`."""

    name: str = "value"
    """Registered name."""


@frozen(kw_only=True)
class AlgorithmConfig:
    """Everything under `algorithm:`."""

    preset: str = ""
    """A published algorithm (`areal algorithms`); its keys count unless the yaml or an override says otherwise."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """What the policy minimises."""
    proximal: Proximal = Proximal.BEHAVIOUR
    """Where the centre of the clip comes from."""
    behaviour: BehaviourConfig = BehaviourConfig()
    advantages: AdvantageConfig = AdvantageConfig()
    kl_loss: KLLossConfig = KLLossConfig()
    minibatches: int = field(default=1, validator=validators.ge(1))
    """Into how many parts a batch of rollouts is cut, an optimizer step each; the policy version counts batches."""
    epochs: int = field(default=1, validator=validators.ge(1))
    """How often a batch is gone through; the proximal policy stays that of the first pass."""
    critic_objective: CriticObjectiveConfig = CriticObjectiveConfig()
    """What the critic minimises."""

    @property
    def updates(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return self.minibatches * self.epochs

    @property
    def needs_forward(self) -> bool:
        """Whether the trainer must compute log-probs of the batch before its first minibatch."""
        return self.proximal is Proximal.RECOMPUTE
