"""What a worker's state amounts to, and when the run hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from areal_core.contract import Job, Worker, WorkerState, WorkerStatus
from areal_core.contract.errors import NoReplica, RemoteError, WorkerDied, WorkerTimeout
from areal_core.testing.clock import StepClock
from areal_core.worker.supervise import Supervisor, failure


def status(rank: int, state: WorkerState = WorkerState.RUNNING, **fields: object) -> WorkerStatus:
    return WorkerStatus(id=f"actor/{rank}", role="actor", rank=rank, state=state, pid=70 + rank, **fields)  # type: ignore[arg-type]


class ScriptedScheduler:
    """Tells the states it was given; places nothing."""

    def __init__(self, *statuses: WorkerStatus) -> None:
        self.statuses = list(statuses)

    async def submit(self, job: Job) -> Sequence[Worker]:
        return ()

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        return [status for status in self.statuses if status.role == role]

    async def cancel(self, role: str) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("state", [WorkerState.STARTING, WorkerState.RUNNING])
def test_healthy_states_are_no_failure(state: WorkerState) -> None:
    """Starting and running are fine."""
    assert failure(status(0, state)) is None


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "ended with exit code 0"), (3, "exit code 3"), (-11, "SIGSEGV"), (-9, "SIGKILL"), (-99, "signal 99")],
)
def test_an_ended_worker_is_named_with_its_ending(code: int, text: str) -> None:
    """Id, rank, process, ending, log lines and log path are all there, even for exit code 0."""
    error = failure(status(1, WorkerState.ENDED, exit_code=code, log_path="l.log", log_tail=("one", "two")))

    assert isinstance(error, WorkerDied)
    for part in ("actor/1", "rank 1", "process 71", text, "one\n", "two", "l.log"):
        assert part in str(error)


def test_a_silent_worker_is_a_timeout_by_name() -> None:
    """Silence is another error than death: the process exists."""
    error = failure(status(0, WorkerState.SILENT))

    assert isinstance(error, WorkerTimeout)
    assert "actor/0 (rank 0, process 70) stopped responding" in str(error)


def test_failed_waits_while_all_is_well_and_raises_within_a_period() -> None:
    """The supervisor returns never, looks once per period, and raises the first failure in rank order."""

    async def run() -> tuple[bool, BaseException | None]:
        scheduler, clock = ScriptedScheduler(status(0), status(1), status(2)), StepClock()
        supervisor = Supervisor(scheduler, clock=clock, period_s=0.2)
        supervisor.watch("actor")
        failed = asyncio.create_task(supervisor.failed())
        await clock.advance(100)
        waited = not failed.done()
        scheduler.statuses[1:] = [status(rank, WorkerState.ENDED, exit_code=1) for rank in (1, 2)]
        await clock.advance(0.2)
        return waited, failed.exception()

    waited, error = asyncio.run(run())

    assert waited
    assert "actor/1" in str(error)


def test_an_unwatched_role_may_lose_workers() -> None:
    """Only what is watched is fatal."""
    scheduler = ScriptedScheduler(status(0, WorkerState.SILENT))
    supervisor = Supervisor(scheduler)

    supervisor.check()
    supervisor.watch("actor")
    with pytest.raises(WorkerTimeout, match="actor/0"):
        supervisor.check()


def test_another_check_is_made_at_every_look() -> None:
    """A fleet that replaces what it loses is asked like the roles, and what it raises is fatal."""

    async def run() -> tuple[int, BaseException | None]:
        looks: list[int] = []

        def check() -> None:
            looks.append(1)
            if len(looks) == 3:
                raise WorkerTimeout("nobody serves")

        clock = StepClock()
        supervisor = Supervisor(ScriptedScheduler(), clock=clock, period_s=0.2)
        supervisor.watch_with(check)
        failed = asyncio.create_task(supervisor.failed())
        await clock.advance(10)
        return len(looks), failed.exception()

    looks, error = asyncio.run(run())

    assert looks == 3
    assert "nobody serves" in str(error)


class Fleet:
    """A check that fails once it is told to."""

    def __init__(self) -> None:
        self.error: NoReplica | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def _supervised(*statuses: WorkerStatus) -> tuple[Supervisor, ScriptedScheduler, Fleet, StepClock]:
    scheduler, clock, fleet = ScriptedScheduler(*statuses), StepClock(), Fleet()
    supervisor = Supervisor(scheduler, clock=clock, period_s=1.0)
    supervisor.watch("actor")
    supervisor.watch_with(fleet.check)
    return supervisor, scheduler, fleet, clock


def test_work_winds_down_before_the_error_of_a_fleet_whose_trainers_live() -> None:
    """The trainers hold steps that are worth saving."""

    async def body() -> list[str]:
        supervisor, _, fleet, clock = _supervised(status(0))
        asked = asyncio.Event()
        done: list[str] = []

        async def work() -> int:
            await asked.wait()
            done.append("saved")
            return 1

        running = asyncio.ensure_future(supervisor.while_live(work(), asked.set))
        await clock.settle()
        fleet.error = NoReplica("the fleet is gone")
        await clock.advance(1.0)
        with pytest.raises(NoReplica, match="the fleet is gone"):
            await running
        return done

    assert asyncio.run(body()) == ["saved"]


def test_a_dead_worker_is_told_before_what_it_made_of_others() -> None:
    """Its neighbours' collectives break at once: their error comes first, and says nothing of the one that died."""

    async def body() -> None:
        supervisor, scheduler, _, clock = _supervised(status(0), status(1))
        gate = asyncio.Event()

        async def work() -> int:
            await gate.wait()
            raise RemoteError("actor/1: the connection was closed by its peer")

        running = asyncio.ensure_future(supervisor.while_live(work(), gate.set))
        await clock.settle()
        scheduler.statuses[0] = status(0, WorkerState.ENDED, exit_code=-9)
        gate.set()
        with pytest.raises(WorkerDied, match="actor/0"):
            await running

    asyncio.run(body())


@pytest.mark.parametrize("fleet_first", [False, True])
def test_work_is_cancelled_when_a_trainer_is_gone(fleet_first: bool) -> None:
    """Nobody waits for a step of a dead trainer, also when it dies while the work winds down."""

    async def body() -> None:
        supervisor, scheduler, fleet, clock = _supervised(status(0))
        asked = asyncio.Event()
        running = asyncio.ensure_future(supervisor.while_live(asyncio.Event().wait(), asked.set))
        await clock.settle()
        if fleet_first:
            fleet.error = NoReplica("the fleet is gone")
            await clock.advance(1.0)
        scheduler.statuses[0] = status(0, WorkerState.ENDED, exit_code=-9)
        await clock.advance(1.0)
        with pytest.raises(NoReplica if fleet_first else WorkerDied):
            await running
        assert asked.is_set() == fleet_first

    asyncio.run(body())
