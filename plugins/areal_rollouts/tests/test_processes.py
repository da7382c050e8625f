"""The processes of a run: as many as asked for, replaced as often as allowed, gone with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ConfigError, ResourceError, WorkerDied
from areal_core.contract.scheduler import Job, WorkerState, WorkerStatus
from areal_core.plugins.registry import Registry
from areal_rollouts.processes import RolloutProcesses
from areal_tasks.tiny import make_spell_model


class Quiet:
    """A worker that has nothing to tell; `die` takes it away."""

    host = "10.0.0.1"

    def __init__(self, role: str, fails: Exception | None) -> None:
        self.id, self.calls, self._fails = f"{role}/0", list[str](), fails
        self.gone = asyncio.Event()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Take a call. Any: as in the contract."""
        self.calls.append(method)
        if method == "start" and self._fails is not None:
            raise self._fails
        if method == "news":
            await self.gone.wait()
        if self.gone.is_set():
            raise WorkerDied(f"worker {self.id} ended")


class Machine:
    """A scheduler of quiet workers."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails
        self.jobs: list[Job] = []
        self.workers: dict[str, Quiet] = {}
        self.full = False

    async def submit(self, job: Job) -> Sequence[Quiet]:
        """Start one."""
        if self.full:
            raise ResourceError(f"no room for {job.role}")
        self.jobs.append(job)
        self.workers[job.role] = Quiet(job.role, self.fails)
        return [self.workers[job.role]]

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        """Tell its state."""
        worker = self.workers[role]
        state = WorkerState.ENDED if worker.gone.is_set() else WorkerState.RUNNING
        return [WorkerStatus(id=worker.id, role=role, rank=0, state=state, exit_code=1)]

    async def cancel(self, role: str) -> None:
        """End it."""
        if (worker := self.workers.pop(role, None)) is not None:
            worker.gone.set()

    async def close(self) -> None:
        """End all."""
        for role in list(self.workers):
            await self.cancel(role)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_spell_model(tmp_path_factory.mktemp("model"), 1)


def _plan(model: Path, *overrides: str) -> Plan:
    base = (
        "data.name=spell",
        "rollout.sampling.max_new_tokens=8",
        "rollout.reward.name=reasoning_gym",
        "rollout.workflow.name=single_turn",
    )
    return make_plan(load_config(None, [f"model.path={model}", *base, *overrides]), Registry(), {})


async def _settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def _processes(
    model: Path, machine: Machine, *overrides: str
) -> tuple[RolloutProcesses, list[tuple[str, dict[str, Any]]]]:  # Any: of events
    events: list[tuple[str, dict[str, Any]]] = []
    made = RolloutProcesses(_plan(model, *overrides), machine, lambda kind, **fields: events.append((kind, fields)))
    return made, events


def test_each_process_is_a_job_of_its_own_that_owns_no_device(model: Path) -> None:
    """So that each can be lost alone; events say where they are."""

    async def test() -> None:
        machine = Machine()
        made, events = _processes(model, machine, "rollout.processes=3")
        await made.start()
        made.runner(object())
        await made.close()

        assert [job.role for job in machine.jobs] == ["workflow", "workflow.1", "workflow.2"]
        assert {(job.engine_role, job.backend, job.devices_per_worker, job.num_workers) for job in machine.jobs} == {
            ("workflow", "single_turn", 0, 1)
        }
        (kind, fields) = events[0]
        assert (kind, set(fields["workers"].values()), len(fields["workers"])) == ("rollout_processes", {"10.0.0.1"}, 3)
        assert machine.workers == {}, "nothing is left of them"

    asyncio.run(test())


def test_a_workflow_that_cannot_be_built_ends_the_start(model: Path) -> None:
    """With its own error, and no process left."""

    async def test() -> None:
        machine = Machine(ConfigError("no such option"))
        made, _ = _processes(model, machine, "rollout.processes=2")
        with pytest.raises(ConfigError, match="no such option"):
            await made.start()
        await made.close()

        assert machine.workers == {}

    asyncio.run(test())


@pytest.mark.parametrize("heard", ["call", "poll"])
def test_a_lost_process_is_replaced_as_often_as_allowed(model: Path, heard: str) -> None:
    """However it is found out; then the run goes on with those that are left, and ends with the last of them."""

    async def test() -> None:
        machine = Machine()
        made, events = _processes(model, machine, "rollout.processes=2", "rollout.max_replacements=1")
        await made.start()
        made.runner(object())
        await _settle()

        async def lose(role: str) -> None:
            if heard == "call":
                machine.workers[role].gone.set()
            else:
                machine.workers[role].gone = asyncio.Event()  # its calls hang, and only the scheduler knows
                machine.workers[role].gone.set()
                made.check()
            await _settle()

        await lose("workflow")
        made.check()
        assert [kind for kind, _ in events[1:]] == ["rollout_process_lost", "rollout_process_joined"]
        assert set(machine.workers) == {"workflow.1", "workflow.2"}

        await lose("workflow.1")
        made.check()
        assert set(machine.workers) == {"workflow.2"}
        assert "not replaced" in events[-1][1]["says"]

        machine.workers["workflow.2"].gone.set()
        await _settle()
        with pytest.raises(WorkerDied, match=r"workflow\.2/0"):
            made.check()
        await made.close()

    asyncio.run(test())


def test_a_replacement_that_finds_no_room_is_none(model: Path) -> None:
    """The run goes on with the others."""

    async def test() -> None:
        machine = Machine()
        made, events = _processes(model, machine, "rollout.processes=2")
        await made.start()
        made.runner(object())
        machine.full = True
        await _settle()
        machine.workers["workflow"].gone.set()
        await _settle()

        made.check()
        assert [kind for kind, _ in events[1:]] == ["rollout_process_lost"]
        machine.workers["workflow.1"].gone.set()
        await _settle()
        with pytest.raises((ResourceError, WorkerDied)):
            made.check()
        await made.close()

    asyncio.run(test())
