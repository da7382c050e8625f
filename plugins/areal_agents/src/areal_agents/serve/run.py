"""A run that lets clients in once its policy is served.

Knows: when the door opens and closes, and what is served to who is not trained on.
Does not know: sessions (`reception`), or what is answered (`app`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from areal_agents.endpoint import Endpoint
from areal_agents.serve.app import OnlineApp
from areal_agents.serve.config import KEY_FILE, OnlineConfig
from areal_agents.serve.door import Door, keep_key, tell_key
from areal_agents.serve.reception import Reception, SpareSession
from areal_agents.serve.workflow import OnlineWorkflow
from areal_core.config.plan import Plan
from areal_core.contract.errors import RewardFailed
from areal_core.contract.ids import TaskId
from areal_core.contract.workflow import RewardInput, RewardResult, RolloutWorkflow, Tokenizer
from areal_core.fleet.pool import InferencePool
from areal_core.loop.checkpoint import Progress
from areal_core.loop.evaluator import HeldOut
from areal_core.loop.restarts import Site
from areal_core.loop.run import Rows, Run
from areal_core.loop.train_loop import Parts
from areal_core.observe.events import EventLog
from areal_core.plugins.extensions import EpisodesElsewhere, RewardPool, RunView
from areal_core.plugins.registry import Registry
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSession, PoolSessions
from areal_core.worker.supervise import Supervisor


class OnlineRun(Run):
    """One run of clients' sessions. `execute` is all there is to call, once."""

    def __init__(
        self, plan: Plan, registry: Registry, config: OnlineConfig, *, view: RunView, stop: asyncio.Event
    ) -> None:
        super().__init__(plan, registry, view=view, stop=stop)
        self._options = config
        self._reception: Reception
        self._spare: Callable[[], SpareSession]

    async def _start(
        self,
        stack: AsyncExitStack,
        site: Site,
        supervisor: Supervisor,
        events: EventLog,
        checkpoint: Path | None,
        progress: Progress,
    ) -> Parts:
        """Start as any run, then let clients in."""
        door = Door(self._options.host, self._options.port)
        stack.push_async_callback(door.close)
        endpoint = Endpoint(self._options)
        self._reception = reception = Reception(self._options, endpoint)
        path = self._folder.root / KEY_FILE
        key = keep_key(path)
        await door.open(OnlineApp(reception, endpoint.app(), key).asgi)
        parts = await super()._start(stack, site, supervisor, events, checkpoint, progress)
        stack.push_async_callback(door.close)  # before anything else ends
        stack.push_async_callback(reception.close)
        reception.spare = self._spare
        tell_key(path, door.base_url, key)
        events.write("serving", base_url=door.base_url)
        self._view.note(f"clients are served at {door.base_url}; the admin key is in {path}")
        return parts

    async def _data(self, tokenizer: Tokenizer, events: EventLog) -> tuple[RolloutWorkflow, Rows, list[HeldOut]]:
        workflow, rows, held_out = await super()._data(tokenizer, events)
        assert isinstance(workflow, OnlineWorkflow)
        workflow.reception, workflow.turn_discount = self._reception, self._options.turn_discount
        return workflow, rows, held_out

    def _rewards(self, events: EventLog) -> RewardPool:
        return _ClientsTell()

    def _executor(
        self, pool: InferencePool, rewards: RewardPool | EpisodesElsewhere, tokenizer: Any, *more: Any
    ) -> RolloutExecutor:
        """Return the executor; clients for whom no episode waits ask the same pool. Any: as there."""
        config = self._config
        sessions = PoolSessions(
            pool=pool, rewards=None, tokenizer=tokenizer, sampling=config.rollout.sampling, seed=config.seed
        )
        numbers = count()

        def spare() -> PoolSession:
            name = f"untrained/{next(numbers)}"
            return sessions.open(task_id=TaskId(name), name=name, seed_name=name)

        executor = super()._executor(pool, rewards, tokenizer, *more)
        self._spare, self._reception.version = spare, lambda: executor.stats().version
        return executor


class _ClientsTell:
    """Satisfies `RewardPool`, where nobody is asked for a reward."""

    async def start(self) -> None:
        """Start nothing."""

    async def score(self, value: RewardInput) -> RewardResult:
        """Refuse."""
        raise RewardFailed("no reward function judges a session", why="clients tell the rewards")

    async def close(self) -> None:
        """Close nothing."""
