"""What a check of a scheduler is given: the scheduler, jobs of the probe engine, and what processes are left.

Knows: how to start, ask, count and end real worker processes.
Does not know: what any check expects of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from areal_conformance.benches.base import SOON_S, Bench
from areal_conformance.deadline import Late
from areal_conformance.outcome import HarnessError, Violation, expect
from areal_conformance.probes import engine as probe_engine
from areal_conformance.probes import trainer as probe_trainer
from areal_conformance.probes import transfers as probe_transfers
from areal_conformance.probes.processes import alive, descendants
from areal_conformance.target import Target
from areal_core.contract.errors import ArealError
from areal_core.contract.inference import GenerationRequest, InferenceSpec
from areal_core.contract.scheduler import Job, Scheduler, Worker, WorkerState, WorkerStatus

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
CALL_S = 30.0
"""Of a call that a worker in good health answers at once."""
_LOOK_S = 0.02
PROBE_FILES = tuple(
    str(Path(str(probe.__file__)).resolve()) for probe in (probe_engine, probe_trainer, probe_transfers)
)
SPEC = InferenceSpec(model_path="none")


class SchedulerBench(Bench):
    """One scheduler at a time per block; one worker that serves many checks."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._kept: frozenset[int] = frozenset()
        self._resident: tuple[Scheduler, Worker] | None = None
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._spawned: set[int] = set()

    async def end(self, *, passed: bool) -> None:
        """Let the worker kept between checks go after a failure, and kill what a check left running."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not passed:
            await self._dismiss()
        spawned, self._spawned = self._spawned, set()
        for pid in (self.processes() - self._resident_pids() - self._kept) | set(filter(alive, spawned)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """End the worker kept between checks."""
        await self._dismiss()

    async def alone(self) -> None:
        """End the worker kept between checks, and so whatever its scheduler shares with others of this process."""
        await self._dismiss()

    def job(self, role: str = "probe", num_workers: int = 1, **fields: Any) -> Job:
        """Return a job of probe workers. Any: fields of Job."""
        given = {"engine_role": "infer", "backend": probe_engine.NAME, "imports": PROBE_FILES, **fields}
        return Job(role=role, num_workers=num_workers, **given)

    def options(self, **settings: Any) -> dict[str, Any]:
        """Return the three settings every scheduler takes from the core. Any: values of options."""
        logs = self.folder / f"logs-{next(self._numbers)}"
        return {"log_dir": str(logs), "start_timeout_s": 60.0, "heartbeat_timeout_s": 60.0, **settings}

    @contextlib.asynccontextmanager
    async def scheduler(self, **settings: Any) -> AsyncIterator[Scheduler]:
        """Build one scheduler for the block and close it at the end. Any: values of options."""
        scheduler: Scheduler = self.build(**self.options(**settings))
        try:
            yield scheduler
        except BaseException:
            with contextlib.suppress(Exception):  # the block's own failure is the one to tell
                await asyncio.wait_for(scheduler.close(), SOON_S * self.target.adapter.patience)
            raise
        await self.soon(scheduler.close(), "close")

    async def start(self, scheduler: Scheduler, job: Job, **options: Any) -> list[Worker]:
        """Submit a job and start the probe in every worker. Any: options of the probe."""
        workers = list(await scheduler.submit(job))
        spec = InferenceSpec(model_path="none", options=options)
        await asyncio.gather(*(worker.call("start", spec, timeout_s=CALL_S) for worker in workers))
        return workers

    async def worker(self) -> Worker:
        """Return a started worker that other checks use too: leave it as it was."""
        if self._resident is None:
            before = self.processes()
            scheduler: Scheduler = self.build(**self.options(log_dir=str(self.shared_folder / "logs")))
            try:
                (worker,) = await self.start(scheduler, self.job("resident"))
            except BaseException:
                with contextlib.suppress(Exception):  # what could not start is the one to tell
                    await scheduler.close()
                raise
            self._resident = (scheduler, worker)
            self._kept = frozenset(self.processes() - before)  # a cluster of its own, say, not only workers
        return self._resident[1]

    def doing(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something beside the check; it is cancelled with the check's end. Any: asyncio's own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        return task

    async def spawn(self, worker: Worker) -> int:
        """Let a worker start a child and return its id; whoever forgets it, it ends with the check."""
        pid: int = (await ask(worker, "spawn"))["pid"]
        self._spawned.add(pid)
        return pid

    async def until(self, condition: Callable[[], object], what: str, within_s: float = SOON_S) -> None:
        """Look until something has come true; Violation if it does not within the time."""
        deadline = self.deadline(within_s)
        while not condition():
            if not deadline.left():
                raise deadline.late(f"{what}: not so after {deadline.limit_s:g} s")
            await asyncio.sleep(_LOOK_S)

    def processes(self) -> set[int]:
        """Return the living descendants of this process."""
        return set(descendants(os.getpid()))

    def children(self) -> set[int]:
        """Return the descendants of this process, the dead that nobody collected among them."""
        return {child.pid for child in psutil.Process().children(recursive=True)}

    async def gone(self, pids: Iterable[int], what: str, within_s: float = 0.0) -> None:
        """Expect processes to be gone, now or within a time; Violation naming those that live."""
        watched, starved = set(pids), False
        try:
            await self.until(lambda: not any(map(alive, watched)), what, within_s)
        except Late as late:
            starved = late.starved
        left = {pid: _command(pid) for pid in watched if alive(pid)}
        if left:
            raise Late(f"{what}: {len(left)} processes still live: {left}", starved=starved)

    def status(self, scheduler: Scheduler, role: str, rank: int = 0) -> WorkerStatus:
        """Return the status of one worker; Violation if there is none."""
        statuses = scheduler.poll(role)
        if len(statuses) <= rank:
            raise Violation(f"poll({role!r}) tells of {len(statuses)} workers, the job has rank {rank}")
        return statuses[rank]

    async def told(self, scheduler: Scheduler, role: str, rank: int, state: WorkerState) -> WorkerStatus:
        """Look until poll tells that a worker is in a state; return its status then."""
        await self.until(lambda: self.status(scheduler, role, rank).state is state, f"poll tells that it is {state}")
        return self.status(scheduler, role, rank)

    async def raised(self, kind: type[E], work: Awaitable[Any], what: str, *words: str, within_s: float = SOON_S) -> E:
        """Return what awaiting something raises: an error of this kind that tells these words, or Violation.

        Any: a result.
        """
        try:
            result = await self.soon(work, what, within_s)
        except (Violation, HarnessError):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            if not isinstance(error, kind):
                raise Violation(f"{what} raised {type(error).__name__}, {kind.__name__} was due: {error}") from error
            for part in words:
                expect(part in told(error), f"the error of {what} does not tell {part!r}: {told(error)}")
            return error
        raise Violation(f"{what} returned {result!r:.200} and raised nothing")

    def _resident_pids(self) -> set[int]:
        if self._resident is None:
            return set()
        pids = {status.pid for status in self._resident[0].poll("resident") if status.pid is not None}
        return pids | {child for pid in pids for child in descendants(pid)}

    async def _dismiss(self) -> None:
        resident, self._resident, self._kept = self._resident, None, frozenset()
        if resident is not None:
            with contextlib.suppress(Exception):  # checks of close judge how it closes
                await asyncio.wait_for(resident[0].close(), SOON_S)


def asking(what: str, input_ids: Sequence[int] = (1, 2), **extras: Any) -> GenerationRequest:
    """Return a request that tells the probe what to do. Any: what the probe is given."""
    return GenerationRequest(request_id="r", input_ids=input_ids, extras={"do": what, **extras})  # type: ignore[arg-type]


async def ask(worker: Worker, what: str, *, timeout_s: float = CALL_S, **extras: Any) -> Mapping[str, Any]:
    """Let the probe of a worker do something and return what it gave. Any: what the probe is given and gives."""
    generation = await worker.call("generate", asking(what, **extras), timeout_s=timeout_s)
    given: Mapping[str, Any] = generation.token_extras
    return given


def told(error: BaseException) -> str:
    """Return all that an error says."""
    return "\n".join((error.what, error.why, error.fix)) if isinstance(error, ArealError) else str(error)


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:120]
    except psutil.Error:
        return "?"
