"""A run whose trainers and fleet share devices, before its first turn.

Knows: which training roles take turns with the fleet, and that they make room before it starts.
Does not know: how turns go (`fleet.turns`).
"""

from __future__ import annotations

from areal_core.config.plan import Plan
from areal_core.config.schema import SHARED
from areal_core.config.shared import takes_turns
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.fleet.turns import OwnDevices, Turns
from areal_core.loop.launch import ReplicaLauncher
from areal_core.loop.learner import Learns
from areal_core.loop.train_group import TrainGroup


async def make_room(plan: Plan, learner: Learns) -> None:
    """Have trainers that share their devices with the fleet leave them, so that it can start."""
    if plan.config.placement == SHARED:
        await gather_or_cancel([group.offload() for group in _taking_turns(plan, learner)])


def make_turns(plan: Plan, learner: Learns, pool: InferencePool, launcher: ReplicaLauncher) -> OwnDevices:
    """Return who has the devices from now on: the fleet first."""
    if plan.config.placement != SHARED:
        return OwnDevices()
    trainers, timeout_s = _taking_turns(plan, learner), plan.config.weight_sync.timeout_s
    return Turns(pool=pool, trainers=trainers, end=launcher.end, timeout_s=timeout_s)


def _taking_turns(plan: Plan, learner: Learns) -> list[TrainGroup]:
    groups = [group for group in (learner.actor, learner.critic, learner.reference) if group is not None]
    roles = {group.role: plan.role(group.role) for group in groups}
    return [g for g in groups if takes_turns(g.role, roles[g.role].placement.owner, roles[g.role].device)]
