"""An executor whose episodes are made in rollout processes, all of them in this event loop.

Every message goes through its bytes, as between processes; what is missing are the processes themselves.

Knows: how `areal_rollouts` is put together.
Does not know: any scheduler, or a second.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

from areal_core.config.schema import RolloutConfig
from areal_core.contract.errors import ArealError, WorkerDied
from areal_core.rollout.episodes import EpisodeRunner
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSessions
from areal_rollouts.host import WorkflowHost
from areal_rollouts.messages import Make, unpack
from areal_rollouts.process import Process
from areal_rollouts.routing import Routing
from areal_rollouts.runner import ProcessRunner
from areal_worker.codec import decode, encode
from areal_worker.service import Place


class LoopWorker:
    """A worker whose host is in this loop; its calls travel as bytes. `die` takes it away."""

    def __init__(self, host: WorkflowHost, number: int) -> None:
        self.id, self.host = f"workflow.{number}/0", "127.0.0.1"
        self.hosted = host
        self.num_asked = 0
        self._gone = asyncio.Event()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Run one method of the host. Any: its own."""
        _, values = decode([bytes(frame) for frame in encode((method, args))])
        if method == "tell":
            self.num_asked += sum(isinstance(unpack(data), Make) for data in values[0])
        work = asyncio.ensure_future(self.hosted.call(method, tuple(values)))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if self._gone.is_set():
                raise WorkerDied(f"worker {self.id} ended")
            return decode([bytes(frame) for frame in encode(work.result())])
        finally:
            work.cancel()
            gone.cancel()

    def die(self) -> None:
        """End, as a process does that is killed: nothing is heard of it any more."""
        self._gone.set()


class Elsewhere:
    """So many processes; `executor` stands where a RolloutExecutor does. Another starts in place of one that dies."""

    def __init__(self, count: int = 2, *, runner: type[ProcessRunner] = ProcessRunner) -> None:
        self.count, self._runner = count, runner
        self.routing = Routing()
        self.workers: list[LoopWorker] = []
        self._processes: list[Process] = []
        self._numbers = itertools.count()
        self.replaces = True
        """Whether another starts in place of one that dies."""

    @property
    def num_asked(self) -> int:
        """Return how many episodes processes were asked for."""
        return sum(worker.num_asked for worker in self.workers)

    def executor(self, *, workflow: Any, sessions: PoolSessions, config: RolloutConfig, **given: Any) -> Any:
        """Return an executor that closes its processes with itself. Any: as a RolloutExecutor takes them."""
        make = partial(self._join, workflow, sessions, config, given.pop("prepare", None), given.get("store"))
        for _ in range(self.count):
            make()
        self._make = make
        elsewhere = self

        class Closing(RolloutExecutor):
            async def close(self) -> None:
                await super().close()
                await elsewhere.close()

        runner = partial(self._runner, self.routing)
        return Closing(workflow=workflow, sessions=sessions, config=config, runner=runner, **given)

    async def close(self) -> None:
        """End every process."""
        await asyncio.gather(*(process.close() for process in self._processes))
        await asyncio.gather(*(worker.hosted.close() for worker in self.workers))

    def _join(
        self, workflow: Any, sessions: PoolSessions, config: RolloutConfig, prepare: Any, store: Any
    ) -> None:  # Any: as the executor takes them
        host = WorkflowHost(Place(worker="workflow/0", backend=""))
        own = PoolSessions(
            pool=host.fleet,
            rewards=sessions.rewards,
            tokenizer=sessions.tokenizer,
            sampling=sessions.sampling,
            seed=sessions.seed,
            image_token_id=sessions.image_token_id,
        )
        runner = partial(
            EpisodeRunner,
            workflow=workflow,
            sessions=own,
            retries=config.retries,
            timeout_s=config.episode_timeout_s,
            prepare=prepare,
        )
        host.serve(runner, tell=store is not None)
        worker = LoopWorker(host, next(self._numbers))
        process = Process(worker, fleet=sessions.pool, silence_s=60.0, tell=self._tell, lost=self._lost)
        self.workers.append(worker)
        self._processes.append(process)
        process.start()
        self.routing.add(process)

    def _tell(self, kind: str, **fields: Any) -> None:  # Any: plain data
        """Take no events."""

    def _lost(self, process: Process, error: ArealError) -> None:
        self.routing.remove(process)
        if self.replaces:
            self._make()
        elif not len(self.routing):
            self.routing.end(error)
