"""Where a role's workers go and what they are given: the keys of `placement`, and what fits with what.

Knows: the words a placement asks a scheduler for, and which roles may share devices.
Does not know: machines; a scheduler refuses what they cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_core.contract.abilities import asked_of_job
from areal_core.contract.errors import PlanError
from areal_core.contract.scheduler import Job, Share, Together
from areal_core.plugins.registry import Registry

_GIB = 2**30


@frozen(kw_only=True)
class PlacementConfig:
    """What a role asks the scheduler for; a scheduler that cannot obey a key refuses the run at planning.

    Example: PlacementConfig(memory_gib=16, env={"NCCL_DEBUG": "INFO"}, together_with=Together(role="actor"))
    """

    num_hosts: int = field(default=0, validator=validators.ge(0))
    """Spread the ranks evenly over exactly so many hosts, those of `rollout` replica by replica; 0 leaves it to the
    scheduler."""
    hosts: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Only on these hosts, by the scheduler's names for them."""
    memory_gib: float = field(default=0.0, validator=validators.ge(0.0))
    """Host memory kept for each worker."""
    image: str | None = None
    """Container image of the workers."""
    env: Mapping[str, str] = Factory(dict)
    """Variables of the workers; values of names such as HF_TOKEN are redacted wherever the run writes them."""
    together_with: Together | None = None
    """Beside another role, for example {role: actor, share: devices}."""

    def asks(self) -> dict[str, Any]:
        """Return the fields of `Job` this sets. Any: one type per field."""
        return {
            "num_hosts": self.num_hosts,
            "hosts": self.hosts,
            "memory": round(self.memory_gib * _GIB),
            "image": self.image,
            "env": dict(self.env),
            "together_with": self.together_with,
        }

    @property
    def owner(self) -> str:
        """Return the role whose devices these workers own too; empty if they have their own."""
        beside = self.together_with
        return beside.role if beside is not None and beside.share is Share.DEVICES else ""


def check_placements(
    placements: Mapping[str, PlacementConfig], sizes: Mapping[str, tuple[int, int]], scheduler: str, registry: Registry
) -> None:
    """Refuse what the scheduler does not claim or what contradicts itself.

    Args:
        sizes: of each role the ranks that are placed at once, and the devices of all of them.

    Raises:
        CapabilityError: a word the scheduler does not claim.
        PlanError: roles, hosts or devices do not fit one another.
    """
    # A replica is a role of its own and placed by itself.
    owners = [role for role, one in placements.items() if one.together_with is None and role != "rollout"]
    for role, placement in placements.items():
        for word in asked_of_job(Job(role=role, engine_role="", backend="", num_workers=1, **placement.asks())):
            registry.require("scheduler", scheduler, word)
        count = sizes[role][0]
        if placement.num_hosts and count % placement.num_hosts:
            raise PlanError(
                f"{role}.placement.num_hosts={placement.num_hosts} with {count} ranks",
                why="every host takes equally many; inference replicas are placed one by one",
                fix=f"set {role}.placement.num_hosts to a divisor of {count}, or change {role}.backend",
            )
        beside = placement.together_with
        if beside is not None and beside.role not in set(owners) - {role}:
            raise PlanError(
                f"{role} cannot be placed together with {beside.role!r}",
                why=f"training roles with a place of their own: {', '.join(owners) or 'none'}",
                fix=f"set {role}.placement.together_with.role to one of them",
            )
    for owner in owners:
        guests = [role for role, placement in placements.items() if placement.owner == owner]
        if sum(sizes[guest][1] for guest in guests) > sizes[owner][1]:
            raise PlanError(
                f"{', '.join(guests)} need {sum(sizes[guest][1] for guest in guests)} devices of {owner}, "
                f"which has {sizes[owner][1]}",
                why="a device has one guest at most",
                fix="make the layouts smaller, or share the host only: together_with.share=host",
            )
