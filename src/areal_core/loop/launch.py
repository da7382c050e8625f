"""Start the processes of a plan and hand back the parts the loop drives.

Knows: which role needs which workers, and in which order they start.
Does not know: where a scheduler puts them, or what happens in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from areal_core.config.plan import Plan, RolePlan
from areal_core.config.schema import RoleConfig, RunConfig
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.scheduler import Job, Scheduler, Worker
from areal_core.contract.train import Head, RankContext, TrainSpec
from areal_core.loop.train_group import TrainGroup
from areal_core.rollout.pool import InferencePool, PoolPolicy
from areal_core.runtime.rendezvous import init_method

if TYPE_CHECKING:
    from areal_core.plugins.registry import Registry

_HEADS = {"critic": Head.VALUE}
_MAX_CONCURRENT = 256
"""Requests one replica computes at once; more wait in its queue."""


def make_scheduler(config: RunConfig, registry: Registry, logs: Path) -> Scheduler:
    """Build the run's scheduler; every scheduler's config takes these three settings of the core."""
    options = {
        **config.scheduler.options,
        "log_dir": str(logs),
        "start_timeout_s": config.scheduler.start_timeout_s,
        "heartbeat_timeout_s": config.scheduler.heartbeat_timeout_s,
    }
    scheduler = registry.build("scheduler", config.scheduler.backend, options)
    assert isinstance(scheduler, Scheduler)
    return scheduler


async def start_train_group(
    scheduler: Scheduler, plan: Plan, role: RolePlan, config: RoleConfig, *, total_steps: int, frozen: bool = False
) -> TrainGroup:
    """Submit one training role and build its model on every rank."""
    workers = await scheduler.submit(_job(plan.config, role))
    group = TrainGroup(role.role, workers, timeout_s=plan.config.scheduler.step_timeout_s)
    optimizer = config.optimizer
    if not optimizer.total_steps:
        optimizer = attrs.evolve(optimizer, total_steps=total_steps)
    spec = TrainSpec(
        role=role.role,
        model_path=str(role.model.path),
        head=_HEADS.get(role.role, Head.CAUSAL_LM),
        dtype=role.dtype,
        layout=role.backend.layout,
        optimizer=None if frozen else optimizer,
        temperature=plan.config.rollout.sampling.temperature,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        seed=plan.config.seed,
        options=role.options,
    )
    timeouts = plan.config.scheduler
    ranks = _ranks(workers, role.device, timeouts.step_timeout_s)
    await group.start(spec, ranks, timeout_s=timeouts.start_timeout_s)
    return group


async def start_pool(scheduler: Scheduler, plan: Plan) -> InferencePool:
    """Submit the inference role and load the starting policy on every replica."""
    role, rollout, timeouts = plan.role("rollout"), plan.config.rollout, plan.config.scheduler
    workers = await scheduler.submit(_job(plan.config, role))
    pool = InferencePool(workers, policy=PoolPolicy(request_timeout_s=timeouts.step_timeout_s))
    in_flight = rollout.max_concurrent or (rollout.max_staleness + 1) * rollout.prompts_per_step
    wanted = -(-in_flight * rollout.group_size // len(workers))
    spec = InferenceSpec(
        model_path=str(role.model.path),
        dtype=role.dtype,
        layout=role.backend.layout,
        context_length=rollout.context_length,
        max_concurrent=min(_MAX_CONCURRENT, wanted),
        seed=plan.config.seed,
        device=role.device,
        options=role.options,
    )
    await pool.start_fleet(spec, timeout_s=timeouts.start_timeout_s)
    return pool


def _job(config: RunConfig, role: RolePlan) -> Job:
    return Job(
        role=role.role,
        engine_role=role.engine_role,
        backend=role.backend.name,
        num_workers=role.num_workers,
        device=role.device,
        devices_per_worker=role.devices_per_worker,
        cpus_per_worker=role.cpus_per_worker,
        python=role.python,
        imports=tuple(str(Path(file).absolute()) for file in config.imports),
    )


def _ranks(workers: Sequence[Worker], device: str, timeout_s: float) -> list[RankContext]:
    """One context per worker. Each worker sees only its own devices, so its local rank is 0."""
    address = init_method(workers[0].host)
    return [
        RankContext(
            rank=number,
            world_size=len(workers),
            local_rank=0,
            device=device,
            init_method=address,
            timeout_s=timeout_s,
        )
        for number in range(len(workers))
    ]
