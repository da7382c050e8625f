"""A plan as people read it: who runs where, from which weights, with how much memory."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from areal_core.config.plan import Plan


def show_plan(plan: Plan, console: Console) -> None:
    """Print roles, ranks, devices and the memory estimate, then what the run does in one line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("role", "backend", "workers", "device", "dtype", "model", "memory each"):
        table.add_column(heading)
    for role in plan.roles:
        table.add_row(
            role.role,
            str(role.backend),
            str(role.num_workers),
            role.device if role.device == "cpu" else f"{role.num_workers * role.devices_per_worker} {role.device}",
            role.dtype,
            f"{role.model.architecture} {_count(role.model.num_parameters)}",
            f"{_bytes(role.memory_per_worker)} + activations",
        )
    console.print(table)
    config, rollout = plan.config, plan.config.rollout
    pause = plan.pause.value if plan.pause else "none"
    console.print(
        f"{config.steps} steps of {rollout.prompts_per_step} prompts x {rollout.group_size} samples, "
        f"max staleness {rollout.max_staleness} ({rollout.staleness_policy.value}), objective {plan.objective.name}, "
        f"weights by {config.weight_sync.transport}, pause {pause}",
        highlight=False,
    )
    for warning in plan.warnings:
        console.print(f"[yellow]warning[/yellow] {warning}", highlight=False)


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
