"""The policy objective: PPO and GRPO, token or sequence ratios, decoupled or not.

Knows: the clipped surrogate, the behaviour weight on it, the entropy bonus.
Does not know: how advantages were made, or how batches are cut (law 6 makes that irrelevant).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_algorithms.ratios import LOG_RATIO_BOUND, behaviour_weight, policy_ratio
from areal_algorithms.reduction import Normalizer, count, divide, sequence_mean, token_sums, total
from areal_core.algorithms.config import BehaviourConfig, BehaviourWeight, Proximal, RatioLevel
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum


@frozen(kw_only=True)
class PPOConfig:
    """Options of objective `ppo`, under `algorithm.objective.options`.

    `proximal` and `behaviour` are filled in from `algorithm.proximal` and `algorithm.behaviour`.

    Example: PPOConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    """

    clip_low: float = field(default=0.2, validator=[validators.gt(0.0), validators.lt(1.0)])
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """The ratio is clipped above at 1 + clip_high; None takes clip_low."""
    dual_clip: float | None = field(default=None, validator=validators.optional(validators.gt(1.0)))
    """Bounds the loss of a bad token at dual_clip * |advantage| (arXiv 1912.09729)."""
    ratio_level: RatioLevel = RatioLevel.TOKEN
    """`sequence` is GSPO (arXiv 2507.18071): one ratio and one advantage per sequence."""
    normalizer: Normalizer = Normalizer.TOKENS
    entropy_coefficient: float = field(default=0.0, validator=validators.ge(0.0))
    report_entropy: bool = True
    """Compute the exact entropy for the metrics even without a bonus: two more passes over the logits, no gradient."""
    proximal: Proximal = Proximal.BEHAVIOUR
    behaviour: BehaviourConfig = BehaviourConfig()


@frozen(kw_only=True, eq=False)
class _Surrogate:
    """Per-token columns [T] of one micro-batch."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    dual_clipped: Tensor


class PPOObjective:
    """Minimise the clipped surrogate. Built in every trainer worker; see `docs/explanation/async-ppo.md`."""

    def __init__(self, config: PPOConfig) -> None:
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
        return frozenset({"advantages", "logprobs", "proximal_alpha" if loglinear else "proximal_logprobs"})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count generated tokens, or sequences with one; nothing dropped later is taken out again."""
        return count(batch, self.config.normalizer)

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

    def _surrogate(self, logprobs: Tensor, proximal: Tensor, batch: Batch) -> _Surrogate:
        config = self.config
        advantages = batch.tokens["advantages"].to(logprobs.dtype)
        if config.ratio_level is RatioLevel.SEQUENCE:
            advantages = sequence_mean(advantages, batch)
        ratio = policy_ratio(logprobs, proximal, batch, config.ratio_level)
        high = config.clip_low if config.clip_high is None else config.clip_high
        plain, bounded = -advantages * ratio, -advantages * ratio.clamp(1 - config.clip_low, 1 + high)
        loss, clipped = torch.maximum(plain, bounded), plain < bounded
        dual_clipped = torch.zeros_like(clipped)
        if config.dual_clip is not None:
            cap = config.dual_clip * advantages.abs()
            dual_clipped = loss > cap
            loss = torch.minimum(loss, cap)
        return _Surrogate(loss=loss, ratio=ratio, clipped=clipped, dual_clipped=dual_clipped)


def _divergence(logprobs: Tensor, behaviour: Tensor) -> dict[str, Tensor]:
    """Compare the policy with the one that sampled, per token: KL(behaviour || policy), log-ratio, ratio, -log p."""
    x = (logprobs - behaviour).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = x.exp()
    found = {"approx_kl_k1": -x, "approx_kl_k3": ratio - 1 - x, "surprisal": -logprobs, "policy_ratio": ratio}
    return found | {"policy_ratio_square": ratio.square(), "logprob_gap": x, "logprob_gap_abs": x.abs()}
