"""What an optimizer's settings must satisfy, told before a process starts.

Knows: ranges and schedules.
Does not know: how a schedule is computed (`areal_torch.optimizer`).
"""

from __future__ import annotations

from areal_core.contract.errors import PlanError
from areal_core.contract.train import OptimizerSpec

SCHEDULES = ("constant", "linear", "cosine")


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
