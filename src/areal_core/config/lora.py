"""What an adapter's settings must satisfy, told before a process starts.

Knows: ranges, and which roles have an adapter.
Does not know: layers (`areal_torch.lora` refuses targets a model lacks).
"""

from __future__ import annotations

from areal_core.contract.errors import PlanError
from areal_core.contract.train import LoraSpec


def check_lora(role: str, spec: LoraSpec) -> None:
    """Refuse an adapter no engine can train.

    Args:
        role: whose it is.

    Raises:
        PlanError: names the key.
    """
    at = f"{role}.lora"
    if role != "actor":
        raise PlanError(f"{at} is set", why="only the actor trains an adapter", fix=f"remove {at}")
    if spec.rank < 1:
        raise PlanError(f"{at}.rank is {spec.rank}", why="it must be at least 1", fix="for example 16")
    if not spec.alpha > 0:
        raise PlanError(f"{at}.alpha is {spec.alpha:g}", why="it must be above 0", fix="for example twice the rank")
    if not spec.targets:
        raise PlanError(
            f"{at}.targets is empty",
            why="no layer would be trained",
            fix="for example [q_proj, k_proj, v_proj, o_proj]",
        )
