"""The objectives and estimators of this package, described without importing torch."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest


def _piece(role: str, name: str, factory: str, config: str, summary: str) -> Manifest:
    module = f"areal_algorithms.{role}s"
    return Manifest(
        role=role,
        name=name,
        contract=(1, 0),
        factory=f"{module}.{factory}",
        config=f"{module}.{config}",
        requires=("torch>=2.11", "tensordict>=0.10"),
        devices=("cpu", "cuda", "npu"),
        summary=summary,
    )


def _objective(name: str, kind: str, summary: str) -> Manifest:
    return _piece("objective", name, f"{name}:{kind}Objective", f"{name}:{kind}Config", summary)


PPO = _objective("ppo", "PPO", "PPO, GRPO, GSPO: clipped surrogate, decoupled, with a behaviour weight")
VALUE = _objective("value", "Value", "clipped value regression for the critic")
SFT = _objective("sft", "SFT", "supervised fine-tuning: mean negative log-likelihood")

GAE = _piece("estimator", "gae", "gae:GAE", "gae:GAEConfig", "generalised advantage estimation, also without a critic")
