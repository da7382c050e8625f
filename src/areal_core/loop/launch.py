"""Start the processes of a plan and hand back the parts the loop drives.

Knows: which role needs which workers, in which order they start, and who makes room for whom.
Does not know: where a scheduler puts them, or what happens in a step.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from pathlib import Path

import attrs

from areal_core.config.plan import Plan
from areal_core.config.role_plan import RolePlan
from areal_core.config.schema import SHARED, RoleConfig, RunConfig
from areal_core.config.shared import takes_turns
from areal_core.config.weight_transport import choose_transport, reachable
from areal_core.contract.errors import ResourceError, WorkerError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.scheduler import Job, Scheduler, Worker
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.contract.weights import WeightTransport
from areal_core.fleet.gang import Gang, parts_of
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.fleet.turns import OwnDevices, Turns
from areal_core.fleet.weight_sync import WeightSync
from areal_core.loop.learner import Learns
from areal_core.loop.run_folder import RunFolder
from areal_core.loop.train_group import TrainGroup
from areal_core.observe.events import WEIGHTS_TRAVEL, EventLog
from areal_core.plugins.devices import REPEATABLE
from areal_core.plugins.extensions import ProfileVariables, need
from areal_core.plugins.registry import Registry
from areal_core.worker.rendezvous import address_towards, is_here
from areal_core.worker.supervise import failure

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
    optimizer = attrs.evolve(config.optimizer, total_steps=config.optimizer.total_steps or total_steps)
    spec = TrainSpec(
        role=role.role,
        model_path=str(role.model.path),
        head=role.head,
        dtype=role.dtype,
        layout=role.backend.layout,
        optimizer=None if frozen else optimizer,
        temperature=plan.config.rollout.sampling.temperature,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        seed=plan.config.seed,
        options=role.options,
        lora=role.lora,
        send_adapter=role.lora is not None and any(each.role == "rollout" and each.lora for each in plan.roles),
    )
    timeouts = plan.config.scheduler
    # Rank 0 chooses in its own process: a port that is free here may be taken there.
    host, on_one_host = workers[0].host, len({worker.host for worker in workers}) == 1
    address = await workers[0].call("rendezvous", host, on_one_host, timeout_s=timeouts.start_timeout_s)
    # Each worker sees only its own devices, so its local rank is 0.
    limit, count = timeouts.step_timeout_s, len(workers)
    first = RankContext(
        rank=0, world_size=count, local_rank=0, device=role.device, init_method=str(address), timeout_s=limit
    )
    ranks = [attrs.evolve(first, rank=rank) for rank in range(count)]
    await group.start(spec, ranks, timeout_s=timeouts.start_timeout_s)
    return group


async def start_train_groups(scheduler: Scheduler, plan: Plan) -> dict[str, TrainGroup]:
    """Start the training roles of a plan, side by side where they may."""
    config, chosen = plan.config, plan.config.train_roles
    steps = config.steps * config.algorithm.updates
    groups: dict[str, TrainGroup] = {}
    for guests in (False, True):  # a role has to be there before another is placed beside it
        turn = [name for name, role in chosen.items() if (role.placement.together_with is not None) is guests]
        starts = [
            start_train_group(
                scheduler, plan, plan.role(name), chosen[name], total_steps=steps, frozen=name == "reference"
            )
            for name in turn
        ]
        groups.update(zip(turn, await gather_or_cancel(starts), strict=True))
    return groups


class ReplicaLauncher:
    """Makes the inference replicas of a role one by one: each is a job of its own, so that each can end alone.

    The first has the role `rollout`, the others `rollout.1`, `rollout.2`, ...; no number is used twice. A replica over
    several hosts is one job of as many workers, which start and end together.
    """

    def __init__(self, scheduler: Scheduler, plan: Plan, role: str = "rollout") -> None:
        self._scheduler, self._plan = scheduler, plan
        self._role = plan.role(role)
        self._job = _replica_job(plan.config, self._role)
        self._spec = _inference_spec(plan, self._role)
        self._numbers: dict[str, int] = {}
        self._next = itertools.count()
        self.only_host = ""
        """Where replicas have to be placed from now on, since weights reach no other host; empty for anywhere."""
        self.room = asyncio.Event()  # not set while trainers, who come first, are placed anew
        self.room.set()

    async def start_pool(self, policy: PoolPolicy) -> InferencePool:
        """Make the replicas the plan asks for, all or an error, and a pool of them."""
        workers = await gather_or_cancel([self.place() for _ in range(self._role.num_workers)])
        await gather_or_cancel([self.start(worker) for worker in workers])
        return InferencePool(workers, policy=policy)

    async def place(self) -> Worker:
        """Start one worker process. Raises as `Scheduler.submit` does; nothing is left of it then."""
        await self.room.wait()
        number = next(self._next)
        role = f"{self._job.role}.{number}" if number else self._job.role
        workers = await self._scheduler.submit(attrs.evolve(self._job, role=role))
        worker: Worker = Gang(workers) if len(workers) > 1 else workers[0]
        if self.only_host not in ("", worker.host):
            await self._scheduler.cancel(role)
            raise ResourceError(
                f"{worker.id} was placed on {worker.host}, the run is on {self.only_host}",
                why="its weights travel within one host",
                fix="set weight_sync.transport=collective",
            )
        self._numbers[worker.id] = number
        return worker

    async def start(self, worker: Worker) -> EngineInfo:
        """Load the starting policy, version 0, and what is served beside it on a worker placed here."""
        spec = attrs.evolve(self._spec, replica=self._numbers[worker.id])
        limit = self._plan.config.scheduler.start_timeout_s
        info: EngineInfo = await worker.call("start", spec, timeout_s=limit)
        for name, adapter in self._role.adapters.items():
            await worker.call("load_adapter", name, adapter.path, 0, timeout_s=limit)
        return info

    def connect(
        self,
        stack: AsyncExitStack,
        registry: Registry,
        learner: Learns,
        pool: InferencePool,
        events: EventLog,
        turns: OwnDevices,
    ) -> WeightSync:
        """Connect trainer and pool by a transport that reaches from where one was placed to where the other was."""
        self.room.set()
        serving = [part for replica in pool.replicas for part in parts_of(replica.worker)]
        hosts = [worker.host for worker in (*learner.actor.workers, *serving)]
        plan, why = choose_transport(self._plan.transports, hosts, is_here)
        what = "adapter" if self._role.lora else "weights"
        events.write(WEIGHTS_TRAVEL, what=what, transport=plan.name, pause=plan.pause and plan.pause.value, why=why)
        self.only_host = "" if plan.across_hosts else hosts[0]
        away, config = next((host for host in hosts if not is_here(host)), ""), self._plan.config.weight_sync
        root = str(RunFolder.of(self._plan.config).root)  # what is temporary is each host's own
        where = {"host": address_towards(away), "root": root} if away else {"host": hosts[0]}
        transport = registry.build("transport", plan.name, reachable(registry, plan.name, config.options, **where))
        assert isinstance(transport, WeightTransport)
        stack.callback(transport.close)
        return WeightSync(
            trainers=learner.actor.workers,
            pool=pool,
            transport=transport,
            pause=plan.pause,
            staged=plan.staged,
            timeout_s=config.timeout_s,
            turns=turns,
        )

    async def end(self, worker_id: str) -> None:
        """End a worker placed here and wait until it is gone; its devices are free then. Idempotent."""
        await self._scheduler.cancel(worker_id.rpartition("/")[0])

    def failure(self, worker_id: str) -> WorkerError | None:
        """Return the error that a worker placed here ended or fell silent with; None while it is well."""
        statuses = self._scheduler.poll(worker_id.rpartition("/")[0])
        return next((error for status in statuses if (error := failure(status)) is not None), None)


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


def _inference_spec(plan: Plan, role: RolePlan) -> InferenceSpec:
    rollout = plan.config.rollout
    in_flight = rollout.max_concurrent or (rollout.max_staleness + 1) * rollout.prompts_per_step
    wanted = -(-in_flight * rollout.group_size // role.num_workers)
    return InferenceSpec(
        model_path=str(role.model.path),
        dtype=role.dtype,
        layout=role.backend.layout,
        context_length=rollout.context_length,
        max_concurrent=min(_MAX_CONCURRENT, wanted),
        seed=plan.config.seed,
        device=role.device,
        options=role.options,
        lora=role.lora,
    )


def _replica_job(config: RunConfig, role: RolePlan) -> Job:
    """Return the job of one replica: a worker on each of its hosts, with an equal share of what the replica owns."""
    job, num_hosts = _job(config, role), max(1, role.placement.num_hosts)
    return attrs.evolve(
        job,
        num_workers=num_hosts,
        devices_per_worker=role.devices_per_worker // num_hosts,
        cpus_per_worker=-(-role.cpus_per_worker // num_hosts),
    )


def _job(config: RunConfig, role: RolePlan) -> Job:
    env = dict(REPEATABLE) if config.deterministic else {}
    if config.profile:
        profile: ProfileVariables = need("profile", "profile:")
        env |= profile(config.profile, config.steps, RunFolder.of(config).root, role.role)
    asks = role.placement.asks()
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
        **{**asks, "env": env | asks["env"]},
    )
