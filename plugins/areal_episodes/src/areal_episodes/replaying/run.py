"""A run whose batches come from the store of another: training roles, and nothing that generates.

Knows: which parts of a run a replay has.
Does not know: which steps are replayed (`plan`), or how they are compared.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from areal_core.config.plan import Plan
from areal_core.contract.errors import PlanError
from areal_core.contract.weights import WeightTransport
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.pool import InferencePool
from areal_core.loop.checkpoint import Progress, restore
from areal_core.loop.restarts import Site
from areal_core.loop.run import Run
from areal_core.loop.train_loop import Parts
from areal_core.observe.events import EventLog
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_core.worker.rendezvous import is_here
from areal_core.worker.supervise import Supervisor
from areal_episodes.replaying.batches import StoredBatches
from areal_episodes.replaying.weights import Fingerprints


class ReplayRun(Run):
    """One replay. `execute` is all there is to call, once."""

    def __init__(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event, of: Path) -> None:
        """Train on the episodes in the run folder `of`."""
        super().__init__(plan, registry, view=view, stop=stop)
        self._of = of

    async def _start(
        self,
        stack: AsyncExitStack,
        site: Site,
        supervisor: Supervisor,
        events: EventLog,
        checkpoint: Path | None,
        progress: Progress,
    ) -> Parts:
        """Start the training roles."""
        events.write("replay", of=str(self._of))
        metrics = self._metrics(stack, events, progress)
        learner = await self._learner(site)
        first = learner.actor.workers[0]
        if not is_here(first.host):
            raise PlanError(
                f"the actor's first rank was placed on {first.host}",
                why="a replay reads the weights of every version in shared memory, to compare their fingerprints",
                fix="replay on that host, or place the actor here",
            )
        transport = self._registry.build("transport", "shm", {})
        assert isinstance(transport, WeightTransport)
        stack.callback(transport.close)
        weights = Fingerprints(learner.actor.workers, transport, timeout_s=self._config.weight_sync.timeout_s)
        if checkpoint is not None:
            await restore(checkpoint, learner, progress)
            await weights.update(progress.version)
        return Parts(
            learner=learner,
            executor=StoredBatches(self._of, version=progress.version, tasks=progress.tasks),
            meter=FleetMeter(InferencePool([])),
            sync=weights,
            evaluator=None,
            metrics=metrics,
            events=events,
            view=self._view,
        )
