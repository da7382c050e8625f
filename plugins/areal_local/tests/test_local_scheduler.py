"""Real worker processes: placed as a gang, named when they fail, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import psutil
import pytest

from areal_conformance.probes.processes import Kill, Stop, alive, descendants, survivors
from areal_core.contract import GenerationRequest, InferenceSpec, Job, Scheduler, Worker, WorkerState, WorkerStatus
from areal_core.contract.errors import (
    BackendNotFound,
    ConfigError,
    PromptTooLong,
    RemoteError,
    ResourceError,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from areal_core.plugins.registry import default_registry
from areal_core.worker.supervise import Supervisor
from areal_devices.cuda import nvidia
from areal_devices.npu import npu
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.devices import DevicePool
from areal_local.scheduler.local_scheduler import LocalScheduler

ENGINES = str(Path(__file__).with_name("engines.py"))
CONTROLLER = str(Path(__file__).with_name("controller.py"))
JOB = Job(role="rollout", engine_role="infer", backend="probe", num_workers=1, imports=(ENGINES,))
SPEC = InferenceSpec(model_path="none")


@contextlib.asynccontextmanager
async def scheduler_in(
    folder: Path, *, devices: DevicePool | None = None, **settings: float
) -> AsyncIterator[LocalScheduler]:
    scheduler = LocalScheduler(LocalConfig(log_dir=str(folder / "logs"), **settings), devices=devices)
    try:
        yield scheduler
    finally:
        await scheduler.close()


async def start(scheduler: LocalScheduler, job: Job = JOB, **options: object) -> list[Worker]:
    workers = list(await scheduler.submit(job))
    spec = attrs.evolve(SPEC, options=options)
    await asyncio.gather(*(worker.call("start", spec, timeout_s=30) for worker in workers))
    return workers


def asking(what: str, **extras: object) -> GenerationRequest:
    return GenerationRequest(request_id="r", input_ids=(1, 2), extras={"do": what, **extras})


async def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    for _ in iter(lambda: not condition() and time.monotonic() < deadline, False):
        await asyncio.sleep(0.02)
    return condition()


def state(scheduler: LocalScheduler, rank: int = 0) -> WorkerStatus:
    return scheduler.poll("rollout")[rank]


def test_the_registry_builds_a_scheduler_that_satisfies_the_contract(tmp_path: Path) -> None:
    """Named `local`, with the three settings every scheduler takes."""
    options = {"log_dir": str(tmp_path), "start_timeout_s": 5.0, "heartbeat_timeout_s": 2.0}
    scheduler = default_registry().build("scheduler", "local", options)

    assert isinstance(scheduler, Scheduler)
    asyncio.run(scheduler.close())


def test_a_gang_serves_logs_and_leaves_nothing(tmp_path: Path) -> None:
    """Workers answer in rank order with their own environment; close ends them, and all they started."""

    async def run() -> tuple[list[object], list[int], list[str]]:
        job = attrs.evolve(JOB, num_workers=2, cpus_per_worker=3, env={"PROBE": "yes"})
        async with scheduler_in(tmp_path) as scheduler:
            workers = list(await scheduler.submit(job))
            spec = attrs.evolve(SPEC, options={"children": 1})
            infos = [(await worker.call("start", spec, timeout_s=30)).details for worker in workers]
            answer = await workers[1].call("generate", asking("answer"), timeout_s=10)
            pids = [status.pid for status in scheduler.poll("rollout")]
            everyone = [*pids, *(child for pid in pids for child in descendants(pid))]
            return [worker.id for worker in workers], infos, answer.output_ids, everyone  # type: ignore[return-value]

    ids, infos, answer, everyone = asyncio.run(run())  # type: ignore[misc]

    assert (ids, answer) == (["rollout/0", "rollout/1"], (1, 2))
    assert all(
        {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "", "PROBE": "yes", "torch": "False"}.items() <= info.items()
        for info in infos
    )
    assert len(everyone) == 6, "two workers, their watchdogs, their children"
    assert survivors(everyone, within_s=3) == []
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rollout-0.log", "rollout-1.log"]
    assert "closed in good order" in (tmp_path / "logs" / "rollout-1.log").read_text()


def test_errors_of_engines_and_plugins_arrive_as_they_are(tmp_path: Path) -> None:
    """Contract errors as themselves, others with their traceback, unknown names and methods by name."""

    async def run() -> None:
        async with scheduler_in(tmp_path) as scheduler:
            (worker,) = await scheduler.submit(JOB)
            with pytest.raises(WorkerError, match="rollout/0 has no engine"):
                await worker.call("generate", asking("answer"), timeout_s=10)
            await worker.call("start", SPEC, timeout_s=30)
            with pytest.raises(PromptTooLong, match="too long"):
                await worker.call("generate", asking("refuse"), timeout_s=10)
            with pytest.raises(RemoteError, match="ZeroDivisionError") as caught:
                await worker.call("generate", asking("raise"), timeout_s=10)
            assert "engines.py" in caught.value.why
            with pytest.raises(RemoteError, match="CancelledError"):
                await worker.call("generate", asking("cancel itself"), timeout_s=10)
            with pytest.raises(WorkerError, match="no method '__class__'"):
                await worker.call("__class__", timeout_s=10)
            with pytest.raises(WorkerError, match="started already"):
                await worker.call("start", SPEC, timeout_s=10)
            other = attrs.evolve(JOB, role="other", backend="prob")
            (unknown,) = await scheduler.submit(other)
            with pytest.raises(BackendNotFound, match="prob"):
                await unknown.call("start", SPEC, timeout_s=30)

    asyncio.run(run())


def test_cancelling_and_timing_out_reach_the_engine(tmp_path: Path) -> None:
    """Both free the engine's slot."""

    async def run() -> tuple[float, int]:
        async with scheduler_in(tmp_path) as scheduler:
            (worker,) = await start(scheduler)
            call = asyncio.create_task(worker.call("generate", asking("hang"), timeout_s=60))
            while (await worker.call("status", timeout_s=10)).num_running < 1:
                pass
            call.cancel()
            with pytest.raises(WorkerTimeout, match=r"rollout/0 did not answer 'generate' within 0\.2 s"):
                await worker.call("generate", asking("hang"), timeout_s=0.2)
            status = await worker.call("status", timeout_s=10)
            while status.num_running:
                status = await worker.call("status", timeout_s=10)
            return status.metrics["cancelled"], status.num_running

    assert asyncio.run(run()) == (2, 0)


def test_a_killed_worker_fails_its_calls_at_once_and_by_name(tmp_path: Path) -> None:
    """Within two seconds every call raises WorkerDied with rank, signal and last log lines; so does the supervisor."""

    async def run() -> tuple[float, WorkerDied, WorkerDied, list[int]]:
        async with scheduler_in(tmp_path) as scheduler:
            workers = await start(scheduler, attrs.evolve(JOB, num_workers=2), children=1)
            supervisor = Supervisor(scheduler)
            supervisor.watch("rollout")
            failed = asyncio.create_task(supervisor.failed())
            calls = [asyncio.create_task(workers[1].call("generate", asking("hang"), timeout_s=600)) for _ in range(3)]
            await workers[1].call("status", timeout_s=10)
            grandchildren = descendants(state(scheduler, 1).pid)
            fault = Kill(state(scheduler, 1).pid)
            fault.inject()
            began = time.monotonic()
            await asyncio.wait([*calls, failed])
            seconds = time.monotonic() - began
            assert [type(call.exception()) for call in calls] == [WorkerDied] * 3
            assert (state(scheduler, 0).state, state(scheduler, 1).state) == (WorkerState.RUNNING, WorkerState.ENDED)
            assert (await workers[0].call("generate", asking("answer"), timeout_s=10)).output_ids == (1, 2)
            return seconds, calls[0].exception(), failed.exception(), survivors(grandchildren, within_s=3)

    seconds, error, supervised, left = asyncio.run(run())

    assert seconds < 2
    for part in ("rollout/1", "rank 1", "SIGKILL", "ready, process", "rollout-1.log", "memory"):
        assert part in str(error)
    assert (str(error), []) == (str(supervised), left)


def test_a_worker_that_exits_shows_its_code_and_last_words(tmp_path: Path) -> None:
    """Exit code and what was printed just before are in the error."""

    async def run() -> None:
        async with scheduler_in(tmp_path) as scheduler:
            (worker,) = await start(scheduler)
            await worker.call("generate", asking("exit"), timeout_s=600)

    with pytest.raises(WorkerDied, match="ended with exit code 3") as caught:
        asyncio.run(run())

    assert caught.value.why.endswith("these are my last words")


def test_a_worker_ends_past_the_interpreters_own_way_out(tmp_path: Path) -> None:
    """gloo now and then aborts a process there, when all its work is done: nobody may take that for a failure."""

    async def run() -> WorkerStatus:
        async with scheduler_in(tmp_path) as scheduler:
            (worker,) = await start(scheduler)
            await worker.call("generate", asking("break the way out"), timeout_s=10)
            os.kill(state(scheduler).pid, signal.SIGTERM)
            assert await until(lambda: state(scheduler).state is WorkerState.ENDED, within_s=10)
            return state(scheduler)

    ended = asyncio.run(run())

    assert (ended.exit_code, ended.log_tail[-1]) == (0, "closed in good order")


def test_a_stopped_worker_is_silent_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP fails its calls within the heartbeat deadline; after SIGCONT it serves again."""

    async def run() -> tuple[BaseException | None, tuple[int, ...]]:
        async with scheduler_in(tmp_path, heartbeat_timeout_s=0.6) as scheduler:
            (worker,) = await start(scheduler)
            fault = Stop(state(scheduler).pid)
            fault.inject()
            with pytest.raises(WorkerTimeout, match=r"rollout/0 \(rank 0, process \d+\) stopped responding") as caught:
                await worker.call("generate", asking("answer"), timeout_s=600)
            with pytest.raises(WorkerTimeout):
                await worker.call("status", timeout_s=600)
            fault.heal()
            assert await until(lambda: state(scheduler).state is WorkerState.RUNNING, within_s=5)
            return caught.value, (await worker.call("generate", asking("answer"), timeout_s=10)).output_ids

    error, answer = asyncio.run(run())

    assert ("ready, process" in str(error), (1, 2)) == (True, answer)


def test_a_held_interpreter_lock_is_not_silence(tmp_path: Path) -> None:
    """A worker whose Python stands still for longer than the deadline counts as alive."""

    async def run() -> tuple[tuple[int, ...], set[WorkerState]]:
        seen: set[WorkerState] = set()
        async with scheduler_in(tmp_path, heartbeat_timeout_s=0.4) as scheduler:
            (worker,) = await start(scheduler)
            request = asking("hold the lock", seconds=1.2)
            call = asyncio.create_task(worker.call("generate", request, timeout_s=30))
            while not call.done():
                seen.add(state(scheduler).state)
                await asyncio.wait([call], timeout=0.05)
            return (await call).output_ids, seen

    assert ((1, 2), {WorkerState.RUNNING}) == asyncio.run(run())


def test_a_controller_that_was_busy_does_not_take_its_workers_for_dead(tmp_path: Path) -> None:
    """A loop blocked for longer than the deadline is the controller's own silence."""

    async def run() -> WorkerState:
        async with scheduler_in(tmp_path, heartbeat_timeout_s=0.5) as scheduler:
            await start(scheduler)
            time.sleep(1.0)  # noqa: ASYNC251 - the blocked loop is the point
            await asyncio.sleep(0.15)
            return state(scheduler).state

    assert asyncio.run(run()) is WorkerState.RUNNING


def test_killing_the_controller_leaves_nothing(tmp_path: Path) -> None:
    """After kill -9 of the controller its workers, their watchdogs and their children are gone within seconds."""
    with subprocess.Popen(
        [sys.executable, CONTROLLER, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as controller:
        assert controller.stdout is not None
        pids = json.loads(controller.stdout.readline())
        before = [alive(pid) for pid in pids]
        os.kill(controller.pid, signal.SIGKILL)
        left = survivors(pids, within_s=5)

    assert before == [True] * 6
    assert left == []


def test_killing_a_worker_takes_its_children_along(tmp_path: Path) -> None:
    """After kill -9 of one worker its watchdog ends what it had started; nobody has to call cancel."""
    with subprocess.Popen(
        [sys.executable, CONTROLLER, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as controller:
        assert controller.stdout is not None
        pids = json.loads(controller.stdout.readline())
        os.kill(pids[0], signal.SIGKILL)
        left = survivors(pids[:3], within_s=5)
        os.kill(controller.pid, signal.SIGKILL)
        survivors(pids, within_s=5)

    assert left == []


@pytest.mark.parametrize("python", ["/bin/false", "python-of-nowhere"])
def test_a_gang_that_cannot_start_leaves_nothing(tmp_path: Path, python: str) -> None:
    """Submit raises, no process is left, the role and its devices are free again."""
    others = {*descendants(os.getpid())}  # of earlier tests in this process, such as a resource tracker

    async def run() -> tuple[type, list[int]]:
        pool = DevicePool({"cuda": ("0", "1")}, [nvidia()])
        async with scheduler_in(tmp_path, devices=pool) as scheduler:
            job = attrs.evolve(JOB, num_workers=2, device="cuda", python=python)
            with pytest.raises(WorkerError) as caught:
                await scheduler.submit(job)
            left = sorted({*descendants(os.getpid())} - others)
            taken = pool.take("cuda", 2, 1)
            pool.give_back("cuda", taken)
            await scheduler.submit(attrs.evolve(job, python=None))
        return type(caught.value), left

    assert (WorkerDied if python.startswith("/") else ResourceError, []) == asyncio.run(run())


def test_one_failing_worker_ends_the_whole_gang(tmp_path: Path) -> None:
    """The error carries the log of the one that failed; the others are ended although they were fine."""
    others = {*descendants(os.getpid())}  # of earlier tests in this process, such as a resource tracker
    marker = tmp_path / "first"
    python = tmp_path / "python"
    first = f'if mkdir {marker} 2>/dev/null; then echo "no such library" >&2; exit 7; fi'
    python.write_text(f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    async def run() -> list[int]:
        async with scheduler_in(tmp_path) as scheduler:
            with pytest.raises(WorkerDied, match="exit code 7") as caught:
                await scheduler.submit(attrs.evolve(JOB, num_workers=3, python=str(python)))
            assert "no such library" in caught.value.why
            return [*scheduler.poll("rollout"), *({*descendants(os.getpid())} - others)]  # type: ignore[list-item]

    assert asyncio.run(run()) == []


def test_a_worker_that_never_answers_is_named_at_the_deadline(tmp_path: Path) -> None:
    """The start deadline bounds submit, and the late worker's process is ended."""
    others = {*descendants(os.getpid())}  # of earlier tests in this process, such as a resource tracker
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)

    async def run() -> list[int]:
        async with scheduler_in(tmp_path, start_timeout_s=0.3) as scheduler:
            with pytest.raises(WorkerTimeout, match=r"rollout/0 did not start within 0\.3 s"):
                await scheduler.submit(attrs.evolve(JOB, python=str(python)))
            return sorted({*descendants(os.getpid())} - others)

    assert asyncio.run(run()) == []


def test_devices_are_owned_by_one_worker_each(tmp_path: Path) -> None:
    """Each worker sees its own ids; a job that does not fit is refused and starts nothing; cancel frees them."""

    async def run() -> list[str]:
        pool = DevicePool({"cuda": ("0", "1", "2")}, [nvidia(), npu()])
        async with scheduler_in(tmp_path, devices=pool) as scheduler:
            job = attrs.evolve(JOB, num_workers=2, device="cuda")
            workers = list(await scheduler.submit(job))
            infos = [(await worker.call("start", SPEC, timeout_s=30)).details for worker in workers]
            with pytest.raises(ResourceError, match="2 cuda devices are wanted and 1 are free"):
                await scheduler.submit(attrs.evolve(job, role="actor"))
            assert scheduler.poll("actor") == ()
            await scheduler.cancel("rollout")
            assert len(await scheduler.submit(attrs.evolve(job, role="actor", num_workers=3))) == 3
            return [info["CUDA_VISIBLE_DEVICES"] for info in infos]

    assert asyncio.run(run()) == ["0", "1"]


def test_a_role_runs_once_and_cancel_is_idempotent(tmp_path: Path) -> None:
    """Submitting a running role is refused; cancelling twice, or nothing, is fine; then it can run again."""

    async def run() -> tuple[int, int]:
        async with scheduler_in(tmp_path) as scheduler:
            (first,) = await scheduler.submit(JOB)
            with pytest.raises(ConfigError, match="'rollout' is already running"):
                await scheduler.submit(JOB)
            pid = state(scheduler).pid
            call = asyncio.create_task(first.call("start", SPEC, timeout_s=60))
            await asyncio.gather(scheduler.cancel("rollout"), scheduler.cancel("rollout"), scheduler.cancel("nobody"))
            await scheduler.cancel("rollout")
            assert not alive(pid)
            with contextlib.suppress(Exception):
                await call
            with pytest.raises(WorkerError, match="rollout/0 was closed"):
                await first.call("status", timeout_s=10)
            await scheduler.submit(JOB)
            return pid, state(scheduler).pid

    first, second = asyncio.run(run())

    assert first != second


def test_cancelling_submit_ends_what_it_started(tmp_path: Path) -> None:
    """Nobody is left when the caller gives up while the gang starts."""
    others = {*descendants(os.getpid())}  # of earlier tests in this process, such as a resource tracker

    async def run() -> list[int]:
        async with scheduler_in(tmp_path) as scheduler:
            submit = asyncio.create_task(scheduler.submit(attrs.evolve(JOB, num_workers=2)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len({*descendants(os.getpid())} - others) >= 2
            submit.cancel()
            await asyncio.wait([submit])
            return sorted({*descendants(os.getpid())} - others)

    assert asyncio.run(run()) == []


def test_a_close_that_is_cut_short_kills_at_once(tmp_path: Path) -> None:
    """A second Ctrl-C does not wait for workers that answer nobody, and leaves neither them nor their sockets."""

    async def run() -> tuple[bool, str]:
        async with scheduler_in(tmp_path, stop_timeout_s=20.0) as scheduler:
            await start(scheduler)
            pid, sockets = state(scheduler).pid, str(scheduler.folder(JOB, 0))
            Stop(pid).inject()
            close = asyncio.create_task(scheduler.close())
            await asyncio.wait([close], timeout=0.1)
            close.cancel()
            await asyncio.wait([close])
            return await until(lambda: not alive(pid), within_s=5), sockets

    gone, sockets = asyncio.run(run())

    assert (gone, Path(sockets).exists()) == (True, False)


def test_close_leaves_no_port_and_can_be_called_twice(tmp_path: Path) -> None:
    """Asked to, a worker listens on every interface; its ports are closed after."""

    async def run() -> tuple[set[str], list[int]]:
        async with scheduler_in(tmp_path, listen_on_all=True) as scheduler:
            await start(scheduler)
            open_ports = [
                (c.laddr.ip, c.laddr.port)
                for c in psutil.Process(state(scheduler).pid).net_connections("inet")
                if c.status == psutil.CONN_LISTEN
            ]
            await scheduler.close()
            await scheduler.close()
        listening = {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        return {ip for ip, _ in open_ports}, [port for _, port in open_ports if port in listening]

    assert ({"0.0.0.0"}, []) == asyncio.run(run())


def test_keys_are_nowhere_to_be_seen(tmp_path: Path) -> None:
    """Neither argv, nor the environment, nor the log of a worker holds a key."""

    async def run() -> tuple[str, list[str]]:
        async with scheduler_in(tmp_path) as scheduler:
            await start(scheduler)
            process = psutil.Process(state(scheduler).pid)
            secrets = [scheduler.keys.secret, scheduler.keys.public]
            seen = " ".join([*process.cmdline(), *process.environ().values(), *process.environ()])
        return seen + (tmp_path / "logs" / "rollout-0.log").read_text(), secrets

    seen, secrets = asyncio.run(run())

    assert not any(secret in seen for secret in secrets)
