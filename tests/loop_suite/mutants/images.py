"""Broken loops: images that are lost on the way, or not made ready.

Knows: how one part of the loop is put in the place of the core's own.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import attrs

from areal_core.contract.data import Episode
from areal_core.contract.inference import GenerationRequest
from areal_core.fleet.pool import Failures, InferencePool
from areal_core.fleet.replica import Replica
from areal_core.rollout.episodes import EpisodeOrder, EpisodeRunner
from areal_core.rollout.executor import RolloutExecutor

from .part import Wrapped, broken


@broken("pool", "loop.images.again", row="token-fidelity")
class GoesOnBlind(InferencePool):
    """Sends a request that goes on without its images."""

    async def _next(self, affinity: Sequence[str], failed: Failures) -> Replica:
        whole = tuple((getattr(replica, "_whole", replica), error) for replica, error in failed)
        return _Blind(await super()._next(affinity, whole))  # type: ignore[return-value]


class _Blind(Wrapped):
    """A replica that is shown no image of a request that goes on."""

    def send(self, request: GenerationRequest, timeout_s: float) -> Awaitable[object]:
        return self._whole.send(attrs.evolve(request, extras={}) if request.num_prior else request, timeout_s)


@broken("executor", "loop.images.prepared")
class HandsOverUnprepared(RolloutExecutor):
    """Hands trajectories over as workflows made them."""

    def __init__(self, *, prepare: Any = None, **options: Any) -> None:  # Any: as RolloutExecutor
        super().__init__(**options)


class _InTheLoop(EpisodeRunner):
    async def _prepared(self, order: EpisodeOrder, episode: Episode | None) -> Episode | None:
        if episode is None or self._prepare is None or order.index < 0:
            return episode
        return attrs.evolve(episode, trajectories=[self._prepare(one) for one in episode.trajectories])


@broken("executor", "loop.images.prepared")
class PreparesInTheLoop(RolloutExecutor):
    """Prepares trajectories in the event loop."""

    def __init__(self, **options: Any) -> None:  # Any: as RolloutExecutor
        super().__init__(**options)
        self._runner.__class__ = _InTheLoop
