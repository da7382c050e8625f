"""A run that does not move: when that is said, who waits for whom, and where every process stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from attrs import define, field

from areal_core.contract import GenerationRequest, InferenceSpec, Job
from areal_core.contract.errors import RolloutError, WorkerTimeout
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.local_worker import LocalWorker
from areal_local.scheduler.rpc import RpcClient
from areal_local.scheduler.stalls import CONTROLLER_LOG, StallWatch

ENGINES = str(Path(__file__).with_name("engines.py"))
JOB = Job(role="rollout", engine_role="infer", backend="probe", num_workers=1, imports=(ENGINES,))
NOBODY = 2**31 - 1
"""No process has this id."""


@define
class Asked:
    """A worker as its calls show it: a client and a process in one."""

    id: str
    in_flight: list[tuple[str, float]] = field(factory=list)
    num_answered: int = 0
    pid: int = NOBODY

    @property
    def client(self) -> Asked:
        """Its calls."""
        return self

    def write_stacks(self) -> None:
        """It has none."""


def watch_of(folder: Path, *workers: Asked, bound_s: float = 100.0, stalled: str = "restart") -> StallWatch:
    """A watch that has looked once, at 0 s."""
    config = LocalConfig(log_dir=str(folder), progress_timeout_s=bound_s, stalled=stalled)

    async def made() -> StallWatch:
        watch = StallWatch(config, lambda: cast(list[LocalWorker[RpcClient]], list(workers)))
        watch.look(0.0)
        return watch

    return asyncio.run(made())


def looked(watch: StallWatch, now: float) -> None:
    """Look at a time, in an event loop."""

    async def look() -> None:
        watch.look(now)

    asyncio.run(look())


def test_without_an_answer_for_so_long_who_waits_for_whom_is_told(tmp_path: Path) -> None:
    """Not a moment before; the words have worker, method, number and the longest wait."""
    actor = Asked("actor/0", [("train_step", 99.0)])
    watch = watch_of(tmp_path, actor, Asked("rollout/0", [("generate", 7.0), ("generate", 12.0)]))

    looked(watch, 99.9)
    early = watch.error
    looked(watch, 100.0)

    assert early is None
    assert isinstance(watch.error, WorkerTimeout) and watch.error.what == "nothing moved for 100 s"
    assert watch.error.why == "actor/0 was asked for 1 train_step (99 s); rollout/0 was asked for 2 generate (12 s)"
    assert f"the stacks of all processes in {tmp_path}" in watch.error.fix


def test_an_answer_an_engine_that_starts_and_no_worker_are_no_stall(tmp_path: Path) -> None:
    """Each begins the time anew; an engine that starts has a deadline of its own."""
    worker = Asked("actor/0")
    watch, empty = watch_of(tmp_path, worker), watch_of(tmp_path)

    worker.num_answered = 1
    looked(watch, 99.0)
    worker.in_flight = [("start", 1.0)]
    looked(watch, 198.0)
    worker.in_flight = []
    looked(watch, 297.0)
    looked(empty, 1000.0)

    assert (watch.error, empty.error) == (None, None)
    looked(watch, 298.0)
    assert watch.error is not None and "a workflow, a reward or the controller itself" in watch.error.why


def test_zero_waits_for_ever(tmp_path: Path) -> None:
    """Whoever has calls of hours says so."""
    watch = watch_of(tmp_path, Asked("actor/0"), bound_s=0.0)

    looked(watch, 1e9)

    assert watch.error is None


@pytest.mark.parametrize(("stalled", "kind"), [("restart", WorkerTimeout), ("end", RolloutError)])
def test_the_error_says_whether_the_run_may_start_again(tmp_path: Path, stalled: str, kind: type[Exception]) -> None:
    """Only the loss of a worker is an occasion for a restart."""
    watch = watch_of(tmp_path, Asked("actor/0"), stalled=stalled)

    looked(watch, 100.0)

    assert type(watch.error) is kind


def test_a_trainer_nobody_waits_for_outlives_the_run_until_its_state_is_saved(tmp_path: Path) -> None:
    """Where the run is to end: the fleet is what ends it, and calls that save are not taken for what held it up."""
    actor, critic, rollout = Asked("actor/0"), Asked("critic/0", [("forward", 9.0)]), Asked("rollout/0")
    rollout.in_flight = [("generate", 100.0)]
    watch = watch_of(tmp_path, actor, critic, rollout, stalled="end")

    looked(watch, 100.0)
    actor.in_flight = [("save_state", 1.0)]

    assert not _ends(watch, actor, training=True)
    assert _ends(watch, critic, training=True) and _ends(watch, rollout, training=False)
    actor.num_answered += 1
    looked(watch, 150.0)
    looked(watch, 349.0)
    assert not _ends(watch, actor, training=True)
    looked(watch, 350.0)
    assert _ends(watch, actor, training=True)


def test_a_run_that_is_to_start_again_does_so_at_once(tmp_path: Path) -> None:
    """From its last checkpoint, whoever does not move."""
    actor = Asked("actor/0")
    watch = watch_of(tmp_path, actor, Asked("rollout/0", [("generate", 100.0)]))
    early = _ends(watch, actor, training=True)

    looked(watch, 100.0)

    assert (early, _ends(watch, actor, training=True)) == (False, True)


def _ends(watch: StallWatch, worker: Asked, *, training: bool) -> bool:
    return watch.ends([cast(LocalWorker, worker)], training=training)


@pytest.mark.parametrize(("stalled", "method", "again"), [
    ("restart", "train_step", True), ("end", "train_step", False), ("restart", "start", False),
])  # fmt: skip
def test_a_training_call_past_its_deadline_is_a_stall(tmp_path: Path, stalled: str, method: str, again: bool) -> None:
    """Stacks are written in any case; before training begins, or where it is to end, the call's own error counts."""
    worker = Asked("actor/1", [(method, 1800.0)])
    watch = watch_of(tmp_path, worker, stalled=stalled)

    async def late() -> None:
        watch.late(cast(LocalWorker, worker), method)

    asyncio.run(late())

    assert (watch.error is not None) == again
    assert f"actor/1 was asked for 1 {method} (1800 s)" in (tmp_path / CONTROLLER_LOG).read_text()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    for _ in iter(lambda: not condition() and time.monotonic() < deadline, False):
        await asyncio.sleep(0.02)  # between looks at another process; nothing is assumed of its length
    assert condition()


def test_every_process_of_a_run_that_hangs_writes_where_it_stands_and_lives_on(tmp_path: Path) -> None:
    """The worker's threads in its own log, the controller's threads and tasks beside it, for this user alone."""
    logs = tmp_path / "logs"

    async def run() -> int:
        scheduler = LocalScheduler(LocalConfig(log_dir=str(logs), progress_timeout_s=1000.0))
        try:
            (worker,) = await scheduler.submit(JOB)
            await worker.call("start", InferenceSpec(model_path="none"), timeout_s=60)
            request = GenerationRequest(request_id="r", input_ids=(1,), extras={"do": "hang"})
            hangs = asyncio.create_task(worker.call("generate", request, timeout_s=600), name="the one that waits")
            await asyncio.sleep(0)
            for now in (0.0, 1001.0):  # the answer to `start` is news only once
                scheduler._stalls.look(scheduler._clock.now() + now)
            with pytest.raises(WorkerTimeout, match="nothing moved") as told:
                scheduler.poll("rollout")
            assert "rollout/0 was asked for 1 generate" in told.value.why
            await _until(lambda: "most recent call first" in (logs / "rollout-0.log").read_text())
            answer = await worker.call("status", timeout_s=60)
            hangs.cancel()
            return int(answer.num_running)
        finally:
            await scheduler.close()

    still_running = asyncio.run(run())
    own = logs / CONTROLLER_LOG

    assert still_running == 1
    assert "worker_main.py" in (logs / "rollout-0.log").read_text()
    assert "task the one that waits" in own.read_text() and "rpc.py" in own.read_text()
    assert "in run" in own.read_text()
    assert own.stat().st_mode & 0o777 == 0o600
