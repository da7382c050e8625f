"""A plan as people read it: who runs where, from which weights, with how much memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from areal_config.turns import memory_of_turns
from areal_core.config.plan import Plan
from areal_core.config.role_plan import RolePlan
from areal_core.config.schema import SHARED
from areal_core.config.weight_transport import TransportPlan
from areal_core.contract.device import CPU
from areal_core.plugins.structure import unstructure

_HEADINGS = ("role", "backend", "ranks", "device", "dtype", "model", "memory each")
_THOUSANDS = {"B": 10**9, "M": 10**6, "k": 10**3}
_BYTES = {" GiB": 2**30, " MiB": 2**20, " KiB": 2**10}


def describe_plan(plan: Plan) -> str:
    """Return the resolved plan as aligned plain text, warnings last: the extension `plan_text`."""
    config = plan.config
    lines = _aligned([_HEADINGS, *(_row(role) for role in plan.roles)])
    lines += filter(None, map(_placement, plan.roles))
    if config.placement == SHARED and plan.transports:
        training, generating = (_short(size, _BYTES, " B") for size in memory_of_turns(plan.roles))
        where = "" if plan.roles[0].device == CPU else " on each device"
        lines.append(f"by turns{where}: training {training} + activations, generation {generating} + cache")
    lines.append("")
    lines.append(f"{config.steps} steps of " + (_rollouts(plan) if plan.transports else f"kind {config.kind}"))
    lines += [f"warning: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def _rollouts(plan: Plan) -> str:
    rollout = plan.config.rollout
    return (
        f"{'at most ' * rollout.dynamic_batch}{rollout.prompts_per_step} prompts x {rollout.group_size} samples, "
        f"max staleness {rollout.max_staleness} ({rollout.staleness_policy.value}), objective {plan.objective.name}, "
        f"{'the adapter' if plan.roles[-1].lora else 'weights'} by {_transports(plan.transports)}"
        + (f", workflows in {rollout.processes} processes" if rollout.processes else "")
        + (f", adapters beside the policy: {', '.join(plan.roles[-1].adapters)}" if plan.roles[-1].adapters else "")
    )


def _placement(role: RolePlan) -> str:
    """Return the keys a role's placement sets, of variables only the names."""
    asked = {key: value for key, value in unstructure(role.placement).items() if value}
    if "env" in asked:
        asked["env"] = sorted(asked["env"])
    return f"{role.role} placement: {asked}" if asked else ""


def _transports(plans: Sequence[TransportPlan]) -> str:
    """Return how weights travel on one host, and by what across hosts if that is another transport."""
    first = plans[0]
    beyond = next((plan.name for plan in plans if plan.across_hosts), first.name)
    across = "" if beyond == first.name else f" (across hosts by {beyond})"
    return f"{first.name}{across}, pause {first.pause.value if first.pause else 'none'}"


def _row(role: RolePlan) -> tuple[str, ...]:
    ranks = role.num_workers * role.devices_per_worker
    return (
        role.role,
        str(role.backend),
        str(ranks),
        role.device if role.device == "cpu" else f"{ranks} {role.device}",
        role.dtype,
        f"{role.model.architecture} {_short(role.model.num_parameters, _THOUSANDS)}",
        f"{_short(role.memory_per_worker // role.devices_per_worker, _BYTES, ' B')} + activations or cache",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _short(number: int, units: Mapping[str, int], one: str = "") -> str:
    """Return three digits of a number in the largest unit it reaches, in `one` below all of them."""
    for unit, size in units.items():
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number}{one}"
