"""The policy objective: PPO, GRPO and their relatives, token or sequence ratios, decoupled or not.

Knows: which surrogate, the behaviour weight on it, the terms for KL and entropy, over what all is a mean.
Does not know: how advantages were made, or how batches are cut (law 6 makes that irrelevant).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_algorithms.ratios import LOG_RATIO_BOUND, behaviour_weight, kl_loss, policy_ratio
from areal_algorithms.reduction import (
    Normalizer,
    check_normalizer,
    count,
    divide,
    sequence_mean,
    token_sums,
    total,
)
from areal_algorithms.surrogates import Losses, Surrogate, cispo, clip, soft_gate, unclipped
from areal_core.algorithms.config import (
    Aggregate,
    BehaviourConfig,
    BehaviourWeight,
    KLLossConfig,
    Proximal,
    RatioLevel,
)
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ConfigError
from areal_core.contract.train import Output, Sum


@frozen(kw_only=True)
class PPOConfig:
    """Options of objective `ppo`, under `algorithm.objective.options`.

    `proximal`, `behaviour` and `kl_loss` are filled in from the keys of `algorithm:` of the same names.

    Example: PPOConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    """

    surrogate: Surrogate = Surrogate.CLIP
    """How the ratio of a token becomes its loss."""
    clip_low: float = field(default=0.2, validator=[validators.gt(0.0), validators.le(1.0)])
    """The ratio is clipped below at 1 - clip_low; 1 is no bound."""
    clip_high: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """The ratio is clipped above at 1 + clip_high; None takes clip_low."""
    dual_clip: float | None = field(default=None, validator=validators.optional(validators.gt(1.0)))
    """Bounds the loss of a bad token at dual_clip * |advantage| (arXiv 1912.09729)."""
    ratio_level: RatioLevel = RatioLevel.TOKEN
    """`sequence` is GSPO (arXiv 2507.18071): one ratio and one advantage per sequence."""
    ratio_aggregate: Aggregate = Aggregate.MEAN
    """At level `sequence`: the geometric mean of the tokens' ratios, or with `sum` their product."""
    tau_positive: float = field(default=1.0, validator=validators.gt(0.0))
    """Temperature of `soft_gate` for tokens with a positive advantage."""
    tau_negative: float = field(default=1.05, validator=validators.gt(0.0))
    """The same for tokens with a negative one."""
    normalizer: Normalizer = Normalizer.TOKENS
    """What the loss is divided by."""
    constant_tokens: int = field(default=0, validator=validators.ge(0))
    """What `constant` divides by; filled in from `rollout.sampling.max_new_tokens`."""
    entropy_coefficient: float = field(default=0.0, validator=validators.ge(0.0))
    """Times the entropy, off the loss."""
    report_entropy: bool = True
    """Compute the exact entropy for the metrics even without a bonus: two more passes over the logits, no gradient."""
    proximal: Proximal = Proximal.BEHAVIOUR
    """Filled in from `algorithm.proximal`."""
    behaviour: BehaviourConfig = BehaviourConfig()
    """Filled in from `algorithm.behaviour`."""
    kl_loss: KLLossConfig = KLLossConfig()
    """Filled in from `algorithm.kl_loss`."""


class PPOObjective:
    """Minimise the clipped surrogate. Built in every trainer worker; see `docs/explanation/async-ppo.md`."""

    def __init__(self, config: PPOConfig) -> None:
        check_normalizer(config.normalizer, config.constant_tokens)
        if config.dual_clip is not None and config.surrogate is not Surrogate.CLIP:
            raise ConfigError(
                f"dual_clip is set with surrogate {config.surrogate.value}",
                why="it bounds the loss of the surrogate clip, and no other reads it",
                fix="leave dual_clip out, or set surrogate to clip",
            )
        if config.ratio_aggregate is Aggregate.MAX:
            raise ConfigError(
                "ratio_aggregate is max",
                why="one token's ratio is no ratio of the sequence",
                fix="set it to mean or sum",
            )
        self.config = config

    @property
    def outputs(self) -> frozenset[Output]:
        """Ask for log-probs, and for the entropy where it is used."""
        if self.config.entropy_coefficient > 0.0 or self.config.report_entropy:
            return frozenset({Output.LOGPROBS, Output.ENTROPY})
        return frozenset({Output.LOGPROBS})

    @property
    def columns(self) -> frozenset[str]:
        """Name what `compute_advantages` and `add_proximal` put into the batch."""
        loglinear = self.config.proximal is Proximal.LOGLINEAR
        needed = {"advantages", "logprobs", "proximal_alpha" if loglinear else "proximal_logprobs"}
        needed |= {"reference_logprobs"} if self.config.kl_loss.coefficient > 0.0 else set()
        return frozenset(needed | ({"behaviour_kept"} if self._second_moment else set()))

    @property
    def _second_moment(self) -> bool:
        return self.config.behaviour.mode is BehaviourWeight.SECOND_MOMENT

    def normalizer(self, batch: Batch) -> Tensor:
        """Count generated tokens, or sequences with one; nothing dropped later is taken out again."""
        return count(batch, self.config.normalizer, self.config.constant_tokens)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return this micro-batch's share of the loss, and metrics that add over micro-batches."""
        logprobs = columns[Output.LOGPROBS]
        behaviour = batch.tokens["logprobs"].to(logprobs.dtype)
        proximal = self._proximal(logprobs, batch)
        surrogate = self._surrogate(logprobs, proximal, batch)
        weighted = behaviour_weight(proximal, behaviour, batch, self.config.behaviour)
        per_token = surrogate.loss
        if self.config.behaviour.mode is not BehaviourWeight.NONE:
            # where, not 0 * loss: a dropped token must not bring its NaN or infinity along.
            per_token = torch.where(weighted.weight > 0, per_token * weighted.weight, 0.0)
        extra = {}
        if self.config.kl_loss.coefficient > 0.0:
            kl = kl_loss(logprobs, batch.tokens["reference_logprobs"].to(logprobs.dtype), self.config.kl_loss.estimator)
            per_token, extra["kl_loss"] = per_token + self.config.kl_loss.coefficient * kl, kl
        if self.config.entropy_coefficient > 0.0:
            per_token = per_token - self.config.entropy_coefficient * columns[Output.ENTROPY]
        amount = total(per_token, batch, self.config.normalizer)
        metrics = token_sums(
            {
                "clip_fraction": surrogate.clipped,
                "clip_fraction_low": surrogate.clipped & (surrogate.ratio < 1),
                "clip_fraction_high": surrogate.clipped & (surrogate.ratio > 1),
                "dual_clip_fraction": surrogate.dual_clipped,
                "importance_weight": surrogate.ratio,
                "behaviour_weight": weighted.weight,
                "behaviour_filtered": weighted.touched,
                **_divergence(logprobs.detach(), behaviour),
                **({"entropy": columns[Output.ENTROPY]} if Output.ENTROPY in columns else {}),
                **extra,
            },
            batch,
            ("importance_weight", "policy_ratio", "logprob_gap"),
        )
        if "fresh" in batch.tokens:  # there trainer and engine computed with the same weights
            trainer = proximal if self.config.proximal is Proximal.RECOMPUTE else logprobs.detach()
            gap = {"engine_gap": (trainer - behaviour).abs().clamp(max=LOG_RATIO_BOUND)}
            metrics |= token_sums(gap, batch.with_tokens(loss_mask=batch.tokens["fresh"]), ("engine_gap",))
        share = Sum(value=float(amount.detach()), weight=float(self.normalizer(batch)))
        return divide(amount, normalizer), {"loss": share, **metrics}

    def _proximal(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """Return the proximal policy's log-probs, without gradient [T]."""
        if self.config.proximal is not Proximal.LOGLINEAR:
            proximal: Tensor = batch.tokens["proximal_logprobs"].to(logprobs.dtype)
            return proximal
        behaviour: Tensor = batch.tokens["logprobs"].to(logprobs.dtype)
        alpha: Tensor = batch.tokens["proximal_alpha"].to(logprobs.dtype)
        return behaviour + alpha * (logprobs.detach() - behaviour)

    def _surrogate(self, logprobs: Tensor, proximal: Tensor, batch: Batch) -> Losses:
        config = self.config
        advantages = batch.tokens["advantages"].to(logprobs.dtype)
        if config.ratio_level is RatioLevel.SEQUENCE:
            advantages = sequence_mean(advantages, batch)
        ratio = policy_ratio(logprobs, proximal, batch, config.ratio_level, config.ratio_aggregate)
        low, high = 1.0 - config.clip_low, 1.0 + (config.clip_low if config.clip_high is None else config.clip_high)
        if config.surrogate is Surrogate.SOFT_GATE:
            return soft_gate(ratio, advantages, config.tau_positive, config.tau_negative)
        if config.surrogate is Surrogate.CISPO:
            return cispo(ratio, logprobs, advantages, low, high)
        if config.surrogate is Surrogate.UNCLIPPED:
            return unclipped(ratio, advantages)
        return clip(ratio, advantages, low, high, config.dual_clip)


def _divergence(logprobs: Tensor, behaviour: Tensor) -> dict[str, Tensor]:
    """Compare the policy with the one that sampled, per token: KL(behaviour || policy), log-ratio, ratio, -log p."""
    x = (logprobs - behaviour).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = x.exp()
    found = {"approx_kl_k1": -x, "approx_kl_k3": ratio - 1 - x, "surprisal": -logprobs, "policy_ratio": ratio}
    return found | {"policy_ratio_square": ratio.square(), "logprob_gap": x, "logprob_gap_abs": x.abs()}
