"""How roles are started: meeting where rank 0 says, and with replicas only where weights reach them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job, WorkerStatus
from areal_core.contract.train import EngineInfo, LoraSpec, RankContext
from areal_core.fleet.pool import PoolPolicy
from areal_core.loop.launch import ReplicaLauncher, start_train_group, start_train_groups
from areal_core.plugins.registry import default_registry
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model

pytest.importorskip("areal_fsdp")

INFO = {"engine": "e", "engine_version": "1", "device": "cpu", "num_parameters": 0, "context_length": 9}


class Elsewhere:
    """A worker of another machine, which alone can choose a port there."""

    def __init__(self, worker_id: str, host: str) -> None:
        self.id, self.host = worker_id, host
        self.ranks: list[RankContext] = []
        self.together: bool | None = None
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer as a hosted engine would. Any: the contract's."""
        self.calls.append((method, args))
        if method == "rendezvous":
            self.together = args[1] if len(args) > 1 else None
            return f"tcp://{args[0]}:{20_000 + int(self.id[-1])}"
        if method == "start" and len(args) > 1:
            self.ranks.append(args[1])
        return EngineInfo(**INFO)  # type: ignore[arg-type]


class Recorder:
    """A scheduler that notes jobs and gives workers of its hosts in turn."""

    def __init__(self, *hosts: str) -> None:
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        self.workers: list[Elsewhere] = []
        self._hosts = hosts

    async def submit(self, job: Job) -> Sequence[Elsewhere]:
        """Note the job, and give its workers."""
        self.jobs.append(job)
        made = [
            Elsewhere(f"{job.role}/{rank}", self._hosts[len(self.workers) + rank]) for rank in range(job.num_workers)
        ]
        self.workers += made
        return made

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        """Know of nobody."""
        return ()

    async def cancel(self, role: str) -> None:
        """Note it."""
        self.cancelled.append(role)

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two actor ranks, and what they ask for."""
    model = make_spell_model(tmp_path / "model", seed=1)
    asked = ["actor.backend=fsdp:d2", "actor.placement={memory_gib: 0.5, env: {A: b}}"]
    return make_plan(load_config(preset_path("spell"), [f"model.path={model}", *asked]), default_registry(), {})


def test_ranks_meet_where_rank_zero_says(plan: Plan) -> None:
    """Every rank is given what the first one's worker answered, and the job what the yaml asked for."""

    async def run() -> Recorder:
        recorder = Recorder("10.0.0.7", "10.0.0.8")
        await start_train_group(recorder, plan, plan.role("actor"), plan.config.actor, total_steps=1)
        return recorder

    recorder = asyncio.run(run())

    assert [worker.ranks[0].init_method for worker in recorder.workers] == ["tcp://10.0.0.7:20000"] * 2
    assert [(job.memory, job.env) for job in recorder.jobs] == [(2**29, {"A": "b"})]


def test_schedules_end_with_the_last_optimizer_step_of_a_run(tmp_path: Path) -> None:
    """A step of the run has minibatches times epochs of them; where the yaml says a number, it is that."""
    model = make_spell_model(tmp_path / "model", seed=1)
    roles = ["actor.backend=fsdp:d1", "critic.backend=fsdp:d1", "reference.backend=fsdp:d1"]
    asked = ["steps=5", "algorithm.minibatches=2", "algorithm.epochs=3", "critic.optimizer.total_steps=7"]
    config = load_config(preset_path("spell"), [f"model.path={model}", *roles, *asked])
    recorder = Recorder("a", "a", "a")

    asyncio.run(start_train_groups(recorder, make_plan(config, default_registry(), {})))

    specs = [args[0] for worker in recorder.workers for method, args in worker.calls if method == "start"]
    assert {spec.role: spec.optimizer and spec.optimizer.total_steps for spec in specs} == {
        "actor": 5 * 2 * 3,
        "critic": 7,
        "reference": None,
    }


def test_engines_are_told_what_the_run_says(tmp_path: Path) -> None:
    """Seeds and the temperature are the run's, and a replica has room for its share of all that may be in flight."""
    model = make_spell_model(tmp_path / "model", seed=1)
    rollout = "{max_staleness: 2, prompts_per_step: 3, group_size: 4, backend: 'reference:d2'}"
    asked = ["actor.backend=fsdp:d1", "seed=5", f"rollout={rollout}", "rollout.sampling.temperature=0.6"]
    plan = make_plan(load_config(preset_path("spell"), [f"model.path={model}", *asked]), default_registry(), {})
    recorder = Recorder(*"aaa")

    async def started() -> None:
        await start_train_groups(recorder, plan)
        await ReplicaLauncher(recorder, plan).start_pool(PoolPolicy())

    asyncio.run(started())

    trainer, *replicas = [args[0] for worker in recorder.workers for method, args in worker.calls if method == "start"]
    assert (trainer.seed, trainer.temperature) == (5, 0.6)
    assert [(spec.seed, spec.replica, spec.max_concurrent) for spec in replicas] == [(5, 0, 18), (5, 1, 18)]


@pytest.mark.parametrize(("hosts", "together"), [(("a", "a"), True), (("a", "b"), False)])
def test_rank_zero_is_told_whether_all_ranks_are_on_its_host(
    plan: Plan, hosts: tuple[str, str], together: bool
) -> None:
    """Only then may it choose a file that no other user reads instead of a port that every user can connect to."""
    recorder = Recorder(*hosts)

    asyncio.run(start_train_group(recorder, plan, plan.role("actor"), plan.config.actor, total_steps=1))

    assert recorder.workers[0].together is together


def test_every_replica_is_given_the_adapters_before_it_serves(plan: Plan) -> None:
    """The first and those that come later: `start` ends when each adapter is loaded, as version 0."""
    adapters = {"critic": LoraSpec(rank=1, alpha=1.0, targets=("q",), path="/a"), "other": LoraSpec(path="/b")}
    roles = tuple(attrs.evolve(role, adapters=adapters if role.role == "rollout" else {}) for role in plan.roles)

    async def run() -> list[list[tuple[str, tuple[Any, ...]]]]:
        recorder = Recorder("here", "here")
        launcher = ReplicaLauncher(recorder, attrs.evolve(plan, roles=roles))
        workers = [await launcher.place() for _ in range(2)]
        for worker in workers:
            await launcher.start(worker)
        return [worker.calls for worker in recorder.workers]

    for first, *more in asyncio.run(run()):
        assert first[0] == "start" and more == [
            ("load_adapter", ("critic", "/a", 0)),
            ("load_adapter", ("other", "/b", 0)),
        ]


def test_a_replica_over_hosts_is_one_job_whose_workers_share_what_it_owns(plan: Plan) -> None:
    """One gang: a worker on each host with its part of devices and cores; its end is the end of the whole job."""
    place = attrs.evolve(plan.role("rollout").placement, num_hosts=2)
    wide = attrs.evolve(plan.role("rollout"), placement=place, devices_per_worker=8, cpus_per_worker=3)
    roles = tuple(wide if role.role == "rollout" else role for role in plan.roles)

    async def run() -> Recorder:
        recorder = Recorder("a", "b", "c", "d")
        launcher = ReplicaLauncher(recorder, attrs.evolve(plan, roles=roles))
        replicas = [await launcher.place() for _ in range(2)]
        assert [replica.id for replica in replicas] == ["rollout/0", "rollout.1/0"]
        await launcher.start(replicas[1])
        await launcher.end(replicas[1].id)
        return recorder

    recorder = asyncio.run(run())

    assert [(j.num_workers, j.num_hosts, j.devices_per_worker, j.cpus_per_worker) for j in recorder.jobs] == 2 * [
        (2, 2, 4, 2)
    ]
    assert [[method for method, _ in worker.calls] for worker in recorder.workers] == [
        [],
        [],
        ["rendezvous", "start"],
        ["start"],
    ]
    specs = [worker.calls[-1][1][0] for worker in recorder.workers[2:]]
    assert [(spec.replica, spec.part.rank, spec.part.leader) for spec in specs] == [
        (1, 0, "tcp://c:20000"),
        (1, 1, "tcp://c:20000"),
    ]
    assert recorder.cancelled == ["rollout.1"]


def test_a_replica_that_weights_would_not_reach_is_not_kept(plan: Plan) -> None:
    """Where they travel within one host, a replica on another one is ended and refused with the reason."""

    async def run() -> Recorder:
        recorder = Recorder("here", "there", "here")
        launcher = ReplicaLauncher(recorder, plan)
        await launcher.place()
        launcher.only_host = "here"
        with pytest.raises(ResourceError, match=r"rollout.1/0 was placed on there, the run is on here"):
            await launcher.place()
        await launcher.place()
        return recorder

    recorder = asyncio.run(run())

    assert recorder.cancelled == ["rollout.1"]
    assert [job.role for job in recorder.jobs] == ["rollout", "rollout.1", "rollout.2"]
