"""How much memory each turn of `placement: shared` needs at least."""

from __future__ import annotations

from collections.abc import Sequence

from areal_core.config.role_plan import RolePlan
from areal_core.config.shared import takes_turns
from areal_core.contract.device import CPU


def memory_of_turns(roles: Sequence[RolePlan]) -> tuple[int, int]:
    """Return bytes for weights and optimizer on one device in a turn of training and in one of generation.

    On the CPU, where memory is one, they are those of all workers together.
    """
    training = generating = 0
    for role in roles:
        each = role.memory_per_worker // role.devices_per_worker
        share = role.memory_per_worker * role.num_workers if role.device == CPU else each
        if role.engine_role == "infer":
            generating += share
        elif takes_turns(role.role, role.placement.owner, role.device):
            training += share
    return training, generating
