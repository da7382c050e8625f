"""The built-in objectives, described without importing torch."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest


def _objective(name: str, kind: str, summary: str) -> Manifest:
    module = f"areal_core.algorithms.objectives.{name}"
    return Manifest(
        role="objective",
        name=name,
        contract=(1, 0),
        factory=f"{module}:{kind}Objective",
        config=f"{module}:{kind}Config",
        requires=("torch>=2.11", "tensordict>=0.10"),
        extra="torch",
        devices=("cpu", "cuda", "npu"),
        summary=summary,
    )


PPO = _objective("ppo", "PPO", "PPO, GRPO, GSPO: clipped surrogate, decoupled, with a behaviour weight")
VALUE = _objective("value", "Value", "clipped value regression for the critic")
SFT = _objective("sft", "SFT", "supervised fine-tuning: mean negative log-likelihood")
