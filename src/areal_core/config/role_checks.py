"""What settings of single roles must satisfy, told before a process starts: optimizer, engine's interpreter.

Knows: ranges, schedules, the keys that decide which interpreter runs an engine.
Does not know: how a schedule is computed, the layers of a model, or where environments lie (extension `environments`).
"""

from __future__ import annotations

from areal_core.config.schema import RolloutConfig
from areal_core.contract.errors import ConfigError, PlanError
from areal_core.contract.train import SCHEDULES, OptimizerSpec
from areal_core.plugins.extensions import EngineEnvironments, need
from areal_core.plugins.manifest import Manifest


def check_optimizer(role: str, spec: OptimizerSpec) -> None:
    """Refuse settings no engine can follow.

    Args:
        role: whose optimizer it is, `actor` or `critic`.

    Raises:
        PlanError: names the key.
    """
    at = f"{role}.optimizer"
    if spec.schedule not in SCHEDULES:
        raise PlanError(
            f"{at}.schedule is {spec.schedule!r}", why=f"schedules are {', '.join(SCHEDULES)}", fix="choose one of them"
        )
    if not spec.lr > 0:
        raise PlanError(f"{at}.lr is {spec.lr:g}", why="it must be above 0", fix="for example 1e-6")
    for name, beta in zip(("first", "second"), spec.betas, strict=True):
        if not 0 <= beta < 1:
            raise PlanError(
                f"the {name} of {at}.betas is {beta:g}", why="it must be from 0 to below 1", fix="take 0.9, 0.999"
            )
    for name in ("eps", "weight_decay", "max_grad_norm", "warmup_steps", "total_steps", "min_lr_ratio"):
        if getattr(spec, name) < 0:
            raise PlanError(f"{at}.{name} is {getattr(spec, name):g}", why="it must not be negative", fix="0 or more")


def check_environment(rollout: RolloutConfig, manifest: Manifest, device: str) -> list[str]:
    """Return warnings about the interpreter a run would start its servers with.

    Nothing is looked for if the engine runs in the trainer's environment, or its server runs already.

    Raises:
        EngineMissing: there is no such interpreter; the fix is the command that makes one.
    """
    if manifest.environment is None or rollout.options.get("url"):
        return []
    named = rollout.options.get("python") or None
    if named is not None and not isinstance(named, str):
        raise ConfigError(f"rollout.options.python={named!r} is not the path of an interpreter", fix="write a string")
    environments: EngineEnvironments = need("environments", f"inference backend {manifest.name!r}")
    return list(environments.find(manifest, device, python=named, worker=rollout.python).warnings)
