"""The kinds of run and the objective this package brings, described without importing torch."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest

_DEVICES = ("cpu", "cuda", "npu")


def _kind(name: str, factory: str, config: str, summary: str) -> Manifest:
    return Manifest(
        role="kind",
        name=name,
        contract=(1, 0),
        factory=f"areal_supervised.kinds:{factory}",
        config=f"areal_supervised.config:{config}",
        devices=_DEVICES,
        summary=summary,
    )


SFT = _kind("sft", "SFT", "SFTConfig", "supervised fine-tuning: imitate answers")
DPO = _kind("dpo", "DPO", "DPOConfig", "direct preference optimization (arXiv 2305.18290)")
IPO = _kind("ipo", "IPO", "IPOConfig", "identity preference optimization (arXiv 2310.12036)")
REWARD_MODEL = _kind(
    "reward_model", "RewardModel", "RewardModelConfig", "a scalar that prefers the better of two answers"
)

DISTILL = Manifest(
    role="kind",
    name="distill",
    contract=(1, 0),
    factory="areal_supervised.distill:Distill",
    config="areal_supervised.distill_config:DistillConfig",
    devices=_DEVICES,
    summary="on-policy distillation: the reverse KL to a teacher on the student's own answers",
)
JUDGED = Manifest(
    role="kind",
    name="judged",
    contract=(1, 0),
    factory="areal_supervised.judged:Judged",
    config="areal_supervised.judged_config:JudgedConfig",
    devices=_DEVICES,
    summary="reinforcement learning whose answers are judged by a model that is a role of the run",
)
DISCOUNTED = Manifest(
    role="estimator",
    name="discounted",
    contract=(1, 0),
    factory="areal_supervised.discounted:Discounted",
    config="areal_supervised.discounted:DiscountedConfig",
    devices=_DEVICES,
    summary="the reward of a token and, discounted, of those after it; nothing is taken off",
)
NOTHING = Manifest(
    role="reward",
    name="nothing",
    contract=(1, 0),
    factory="areal_supervised.nothing:Nothing",
    devices=_DEVICES,
    summary="0 for every answer: for runs that learn from something else",
)

SCORED = Manifest(
    role="reward",
    name="reward_model",
    contract=(1, 0),
    factory="areal_supervised.scored:Scored",
    config="areal_supervised.scored:ScoredConfig",
    devices=_DEVICES,
    summary="the scalar that a trained reward model gives to an answer",
)

LINEAR = Manifest(
    role="objective",
    name="linear",
    contract=(1, 0),
    factory="areal_supervised.linear:LinearObjective",
    config="areal_supervised.linear:LinearConfig",
    devices=_DEVICES,
    summary="a loss by its value and slopes, for losses that compare sequences",
)

DIVERGENCE = Manifest(
    role="objective",
    name="teacher_kl",
    contract=(1, 0),
    factory="areal_supervised.divergence:DivergenceObjective",
    devices=_DEVICES,
    summary="the reverse KL to a teacher over its most probable tokens, for kind distill with top_k",
)
