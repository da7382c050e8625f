"""The built-in objectives, described without importing torch."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest

_OBJECTIVES = "areal_core.algorithms.objectives"

PPO = Manifest(
    role="objective",
    name="ppo",
    contract=(1, 0),
    factory=f"{_OBJECTIVES}.ppo:PPOObjective",
    config=f"{_OBJECTIVES}.ppo:PPOConfig",
    requires=("torch>=2.11", "tensordict>=0.10"),
    extra="torch",
    devices=("cpu", "cuda", "npu"),
    summary="PPO, GRPO, GSPO: clipped surrogate, decoupled, with a behaviour weight",
)

VALUE = Manifest(
    role="objective",
    name="value",
    contract=(1, 0),
    factory=f"{_OBJECTIVES}.value:ValueObjective",
    config=f"{_OBJECTIVES}.value:ValueConfig",
    requires=("torch>=2.11", "tensordict>=0.10"),
    extra="torch",
    devices=("cpu", "cuda", "npu"),
    summary="clipped value regression for the critic",
)

SFT = Manifest(
    role="objective",
    name="sft",
    contract=(1, 0),
    factory=f"{_OBJECTIVES}.sft:SFTObjective",
    config=f"{_OBJECTIVES}.sft:SFTConfig",
    requires=("torch>=2.11", "tensordict>=0.10"),
    extra="torch",
    devices=("cpu", "cuda", "npu"),
    summary="supervised fine-tuning: mean negative log-likelihood",
)
