"""The objectives and estimators of this package, described without importing torch."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest


def _piece(role: str, name: str, factory: str, config: str | None, summary: str) -> Manifest:
    module = f"areal_algorithms.{role}s"
    return Manifest(
        role=role,
        name=name,
        contract=(1, 0),
        factory=f"{module}.{factory}",
        config=None if config is None else f"{module}.{config}",
        requires=("torch>=2.11", "tensordict>=0.10"),
        devices=("cpu", "cuda", "npu"),
        summary=summary,
    )


def _objective(name: str, kind: str, summary: str) -> Manifest:
    return _piece("objective", name, f"{name}:{kind}Objective", f"{name}:{kind}Config", summary)


PPO = _objective("ppo", "PPO", "PPO, GRPO, GSPO, SAPO, CISPO: a surrogate, decoupled or not, with a behaviour weight")
VALUE = _objective("value", "Value", "clipped value regression for the critic")
SFT = _objective("sft", "SFT", "supervised fine-tuning: mean negative log-likelihood")

GAE = _piece("estimator", "gae", "gae:GAE", "gae:GAEConfig", "generalised advantage estimation, also without a critic")
PER_TURN = _piece("estimator", "per_turn", "per_turn:PerTurn", "gae:GAEConfig", "GAE over whole turns of an episode")
GROUP_MEAN = _piece(
    "estimator", "group_mean", "outcome:GroupMean", "outcome:GroupMeanConfig", "reward less the group's mean, by a std"
)
LEAVE_ONE_OUT = _piece(
    "estimator", "leave_one_out", "outcome:LeaveOneOut", None, "reward less the mean of the others of its group"
)
REINFORCE_PP = _piece(
    "estimator",
    "reinforce++",
    "outcome:ReinforcePlusPlus",
    "outcome:ReinforcePlusPlusConfig",
    "rewards from a token on, normalised over the batch",
)
REINFORCE_PP_BASELINE = _piece(
    "estimator",
    "reinforce++_baseline",
    "outcome:ReinforcePlusPlusBaseline",
    None,
    "reward less the group's mean, normalised over the batch",
)
MIXED = Manifest(
    role="accept",
    name="mixed",
    contract=(1, 0),
    factory="areal_algorithms.acceptance:make_mixed",
    devices=("cpu", "cuda", "npu"),
    summary="groups whose rewards differ: dynamic sampling",
)
