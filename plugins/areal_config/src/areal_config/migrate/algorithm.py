"""AReaL's actor settings into `algorithm:`.

Knows: what its switches mean together, and its defaults where ours differ.
Does not know: optimizers, models, layouts (`roles`).
"""

from __future__ import annotations

from areal_config.migrate.draft import Draft

_OBJECTIVE = "algorithm.objective.options"
_LEVELS = {"null": "none", "None": "none"}


def convert_algorithm(draft: Draft) -> None:
    """Convert clip, normalisation, KL, proximal policy and behaviour weight."""
    draft.set("algorithm.minibatches", draft.take("actor.ppo_n_minibatches", 4))
    _clip(draft)
    for theirs, ours in (("reward_norm", "reward_norm"), ("adv_norm", "advantage_norm")):
        _norm(draft, f"actor.{theirs}", f"algorithm.advantages.{ours}")
    for theirs, ours in (("reward_scaling", "reward_scale"), ("reward_bias", "reward_bias")):
        draft.set(f"algorithm.advantages.{ours}", _number(draft.take(f"actor.{theirs}")))
    draft.set("algorithm.advantages.reward_clip", _number(draft.take("actor.reward_clip")))
    draft.set("algorithm.advantages.zero_truncated", draft.take("actor.mask_no_eos_with_zero"))
    draft.set("algorithm.advantages.gamma", _number(draft.take("actor.discount")))
    draft.set("algorithm.advantages.lam", _number(draft.take("actor.gae_lambda")))
    _overlong(draft)
    _kl(draft)
    _proximal(draft)


def _clip(draft: Draft) -> None:
    if draft.take("actor.use_sapo_loss", False):
        draft.set(f"{_OBJECTIVE}.surrogate", "soft_gate")
        draft.set(f"{_OBJECTIVE}.tau_positive", _number(draft.take("actor.sapo_tau_pos")))
        draft.set(f"{_OBJECTIVE}.tau_negative", _number(draft.take("actor.sapo_tau_neg")))
    for unused in ("actor.sapo_tau_pos", "actor.sapo_tau_neg"):
        draft.drop(unused)
    low = _number(draft.take("actor.eps_clip"))
    if low == 0:
        draft.lost.append("actor.eps_clip: 0, a clip that lets nothing through, is left at its default")
        low = None
    draft.set(f"{_OBJECTIVE}.clip_low", low)
    draft.set(f"{_OBJECTIVE}.clip_high", _number(draft.take("actor.eps_clip_higher")))
    draft.set(f"{_OBJECTIVE}.dual_clip", _number(draft.take("actor.c_clip")))
    draft.set(f"{_OBJECTIVE}.ratio_level", draft.take("actor.importance_sampling_level"))
    if draft.has("critic.eps_clip"):
        draft.set("algorithm.critic_objective.name", "value")
        draft.set("algorithm.critic_objective.options.clip", _number(draft.take("critic.eps_clip")))
    draft.drop("critic.ppo_n_minibatches")


def _norm(draft: Draft, theirs: str, ours: str) -> None:
    """Convert a normalisation; where the old yaml has none there is none, whatever our default is."""
    for key, name in (("mean_level", "mean"), ("std_level", "std")):
        level = draft.take(f"{theirs}.{key}", "none")
        draft.set(f"{ours}.{name}", _LEVELS.get(level, level))
    draft.set(f"{ours}.leave_one_out", draft.take(f"{theirs}.mean_leave1out"))
    draft.set(f"{ours}.unbiased", draft.take(f"{theirs}.std_unbiased"))
    draft.set(f"{ours}.eps", _number(draft.take(f"{theirs}.eps")))
    draft.drop(theirs)


def _overlong(draft: Draft) -> None:
    tokens, factor = draft.take("actor.overlong_tokens"), draft.take("actor.overlong_penalty_factor")
    if draft.take("actor.overlong_reward_penalty", False):
        draft.set("algorithm.advantages.overlong.tokens", tokens)
        draft.set("algorithm.advantages.overlong.factor", _number(factor))


def _kl(draft: Draft) -> None:
    """Convert the penalty; it is 0.1 where it is not said, and counts only beside a reference model."""
    coefficient, estimator = _number(draft.take("actor.kl_ctl", 0.1)), draft.take("actor.kl_estimator")
    if not draft.has("ref"):
        return
    if coefficient == 0:
        draft.drop("ref")
        draft.new.pop("reference", None)
        draft.lost.append("ref: with actor.kl_ctl 0 nothing asks a reference model")
        return
    draft.set("algorithm.advantages.kl.coefficient", coefficient)
    draft.set("algorithm.advantages.kl.estimator", estimator)


def _proximal(draft: Draft) -> None:
    decoupled = draft.take("actor.use_decoupled_loss", False)
    recomputed = draft.take("actor.recompute_logprob", False)
    method = draft.take("actor.prox_logp_method", "recompute")
    if decoupled:
        draft.set("algorithm.proximal", "loglinear" if method == "loglinear" else "recompute")
    elif recomputed:
        draft.set("algorithm.proximal", "recompute")
        draft.lost.append("actor.recompute_logprob alone: KL penalties are of the log-probs that were sampled with")
    threshold = draft.take("actor.m2_threshold")
    if threshold is not None and not (decoupled or recomputed):
        draft.lost.append("actor.m2_threshold: without use_decoupled_loss it compared log-probs with themselves")
    elif threshold is not None:
        draft.set("algorithm.behaviour.mode", "second_moment")
        draft.set("algorithm.behaviour.threshold", _number(threshold))
    elif draft.has("actor.rejection_sampling"):
        _behaviour(draft)
    elif decoupled:
        draft.decide.append(
            "algorithm.behaviour.mode: the old loss was decoupled without rejection_sampling, so that stale tokens had "
            "no weight; it stays none, and clamp is the usual choice"
        )
    draft.drop("actor.rejection_sampling")


def _behaviour(draft: Draft) -> None:
    theirs = "actor.rejection_sampling"
    metric = str(draft.take(f"{theirs}.metric", "ratio")).removeprefix("kl_")
    draft.set("algorithm.behaviour.mode", draft.take(f"{theirs}.action", "mask"))
    draft.set("algorithm.behaviour.metric", metric)
    draft.set("algorithm.behaviour.level", draft.take(f"{theirs}.level"))
    draft.set("algorithm.behaviour.aggregate", draft.take(f"{theirs}.agg"))
    draft.set("algorithm.behaviour.upper", _number(draft.take(f"{theirs}.upper")))
    draft.set("algorithm.behaviour.lower", _number(draft.take(f"{theirs}.lower")))


def _number(value: object) -> float | None:
    """Return a float where there is a number: a yaml may hold 1 for 1.0."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
