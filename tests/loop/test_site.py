"""What stays when trainers are lost: the fleet and the scheduler if the fleet can go on, else nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.benches.fleets import Inline

from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ResourceError, WorkerDied, WorkerTimeout
from areal_core.contract.scheduler import Job, WorkerState, WorkerStatus
from areal_core.fleet.elastic import ElasticFleet
from areal_core.fleet.weight_sync import WeightSync
from areal_core.loop.restarts import Site
from areal_core.plugins.registry import default_registry
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import ScriptedEngine, ScriptedWorker
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model


class Machines:
    """A scheduler of scripted replicas with room for so many workers; `moving` False is one whose run stands still."""

    def __init__(self, room: int = 9) -> None:
        self.room, self.moving, self.closed = room, True, False
        self.workers: dict[str, ScriptedWorker] = {}
        self.cancelled: list[str] = []
        self._clock = StepClock()

    async def submit(self, job: Job) -> tuple[ScriptedWorker, ...]:
        """Place one worker, or refuse."""
        if len(self.workers) >= self.room:
            raise ResourceError(f"no room for {job.role}")
        self.workers[job.role] = ScriptedWorker(ScriptedEngine(self._clock), id=f"{job.role}/0", clock=self._clock)
        return (self.workers[job.role],)

    def poll(self, role: str) -> list[WorkerStatus]:
        """Tell of a worker."""
        if not self.moving:
            raise WorkerTimeout("nothing moved")
        worker = self.workers.get(role)
        if worker is None:
            return []
        state = WorkerState.ENDED if worker.dead else WorkerState.RUNNING
        return [WorkerStatus(id=worker.id, role=role, rank=0, state=state, exit_code=-9)]

    async def cancel(self, role: str) -> None:
        """End a worker."""
        if self.workers.pop(role, None) is not None:
            self.cancelled.append(role)

    async def close(self) -> None:
        """End all."""
        self.closed = True


class Started:
    """A site with a trainer and two replicas that serve."""

    def __init__(self, plan: Plan, room: int = 9) -> None:
        asyncio.get_running_loop().set_default_executor(Inline())
        self.machines = Machines(room)
        self.site = Site(self.machines, plan)
        self.told: list[tuple[str, Any]] = []

    async def begin(self, *, looked_after: bool = True) -> Started:
        """Start it."""
        await self.site.submit(_actor())
        pool = await self.site.start_pool()
        sync = WeightSync(trainers=(), pool=pool, transport=None, pause=None, timeout_s=1.0)  # type: ignore[arg-type]
        if looked_after:
            launcher = self.site.launcher
            tell = lambda kind, **fields: self.told.append((kind, fields["worker"]))  # noqa: E731
            self.site.fleet = ElasticFleet(pool=pool, sync=sync, launcher=launcher, max_replacements=1, tell=tell)
            self.site.fleet.start()
        return self

    async def settle(self) -> None:
        """Let every task go as far as it can."""
        for _ in range(50):
            await asyncio.sleep(0)


def _actor() -> Job:
    return Job(role="actor", engine_role="train", backend="reference", num_workers=1)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Plan]:
    """Plan a run of two replicas."""
    model = make_spell_model(tmp_path_factory.mktemp("site") / "model", seed=1)

    def plan(*words: str) -> Plan:
        out = Path(str(model)).parent / "run"
        overrides = [f"model.path={model}", f"out={out}", "actor.backend=reference:d1", "rollout.backend=reference:d2"]
        return make_plan(load_config(preset_path("spell"), [*overrides, *words]), default_registry(), {})

    return plan


def test_a_fleet_that_serves_is_kept_and_only_the_trainers_end(planned: Callable[..., Plan]) -> None:
    """The next start finds the replicas, and may use the trainers' roles again; the last one ends everything."""

    async def test() -> None:
        started = await Started(planned()).begin()
        site, machines = started.site, started.machines
        replicas = [machines.workers["rollout"], machines.workers["rollout.1"]]

        assert site.keep() == ["rollout/0", "rollout.1/0"]
        await site.close()
        assert (machines.cancelled, machines.closed) == (["actor"], False)

        site.kept = []
        await site.submit(_actor())
        pool = await site.start_pool()
        assert [replica.worker for replica in pool.replicas] == replicas
        await site.close()
        assert machines.closed

    asyncio.run(test())


async def _nobody_serves(started: Started) -> None:
    for role in ("rollout", "rollout.1"):
        started.machines.workers[role].die()


async def _stands_still(started: Started) -> None:
    started.machines.moving = False


async def _nothing(_: Started) -> None: ...


@pytest.mark.parametrize(
    ("words", "happens", "looked_after"),
    [
        (("placement=shared",), _nothing, True),
        (("profile.steps=[1]",), _nothing, True),
        ((), _nobody_serves, True),
        ((), _stands_still, True),
        ((), _nothing, False),
    ],
    ids=["on the trainers' devices", "traced", "nobody serves", "stands still", "not complete"],
)
def test_what_cannot_go_on_ends_with_the_trainers(
    planned: Callable[..., Plan],
    words: tuple[str, ...],
    happens: Callable[[Started], Coroutine[Any, Any, None]],
    looked_after: bool,
) -> None:
    """Then everything is started anew, by a scheduler of its own."""

    async def test() -> None:
        started = await Started(planned(*words)).begin(looked_after=looked_after)
        await happens(started)

        assert started.site.keep() == []
        await started.site.close()
        assert started.machines.closed

    asyncio.run(test())


def test_a_replica_lost_with_the_trainers_waits_until_those_have_a_place(planned: Callable[..., Plan]) -> None:
    """There is room for three workers: the replacement of the lost replica must not take the trainer's."""

    async def test() -> None:
        started = await Started(planned(), room=3).begin()
        site, machines = started.site, started.machines
        machines.workers["rollout.1"].die()

        assert site.keep() == ["rollout/0"]
        await site.close()
        await started.settle()
        assert sorted(machines.workers) == ["rollout"]
        site.kept = []
        await site.submit(_actor())
        await started.settle()
        assert sorted(machines.workers) == ["actor", "rollout"]
        site.launcher.room.set()
        await started.settle()
        assert sorted(machines.workers) == ["actor", "rollout", "rollout.2"]
        assert started.told[0] == ("replica_lost", "rollout.1/0")
        await site.close()

    asyncio.run(test())


def test_a_start_that_fails_leaves_the_fleet_for_the_one_after_it(planned: Callable[..., Plan]) -> None:
    """Trainers that find no room wait for it, and the replicas with them."""

    async def test() -> None:
        started = await Started(planned(), room=3).begin()
        site, machines = started.site, started.machines
        for _ in range(2):
            assert len(site.keep()) == 2
            await site.close()
            site.kept, machines.room = [], 2
            with pytest.raises(ResourceError):
                await site.submit(_actor())
        machines.room = 3

        assert len(site.keep()) == 2
        await site.close()
        site.kept = []
        await site.submit(_actor())
        assert sorted(machines.workers) == ["actor", "rollout", "rollout.1"]

    asyncio.run(test())


def test_a_fleet_whose_keeping_broke_is_not_kept(planned: Callable[..., Plan]) -> None:
    """What ended it is not carried into the next start."""

    async def test() -> None:
        started = await Started(planned()).begin()
        fleet = started.site.fleet
        assert fleet is not None
        fleet._fatal = WorkerDied("actor/0 was killed while it sent weights to a replica that joins")

        assert started.site.keep() == []

    asyncio.run(test())
