"""Turns on shared devices with one defect each: sides that overlap, waits without an end, memory nobody gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from areal_core.contract.inference import PauseMode
from areal_core.fleet.turns import FLEETS, Stage, Turns

from .part import broken


@broken("turns", "loop.turns.one_side")
class TrainersComeFirst(Turns):
    """Brings the trainers back before the fleet sleeps."""

    async def train(self) -> None:
        if self.stage is Stage.GENERATING:
            for trainer in self._trainers:
                await trainer.onload()
        await super().train()


@broken("turns", "loop.turns.one_side")
class WakesTooEarly(Turns):
    """Wakes the fleet before the trainers left."""

    async def generate(self) -> None:
        if self.stage is Stage.TRAINING:
            await self._each("wake")
        await super().generate()


@broken("turns", "loop.turns.one_side")
class OnlyTheActorLeaves(Turns):
    """Forgets that critic and reference hold memory too."""

    def __init__(self, **parts: Any) -> None:  # Any: as of `Turns`
        super().__init__(**{**parts, "trainers": parts["trainers"][:1]})


@broken("turns", "loop.turns.requests")
class FreezesRequests(Turns):
    """Pauses the fleet without handing requests back."""

    async def _each(self, method: str, *args: object) -> None:
        await super()._each(method, *((PauseMode.KEEP.value,) if method == "pause" else args))


@broken("turns", "loop.turns.lost_fleet")
class WaitsForNobody(Turns):
    """Stays in the trainers' turn although only the fleet's can bring a replica."""

    async def generate(self) -> None:
        if any(replica.healthy for replica in self._pool.replicas):
            await super().generate()


@broken("turns", "loop.turns.unable")
class LeavesWhoCannotSleep(Turns):
    """Takes a replica that does not sleep out of the fleet, and lets its process keep the memory."""

    async def train(self) -> None:
        async def stays(worker_id: str) -> None:
            """Nobody ends it in time."""

        self._end = stays
        await super().train()


@broken("turns", "loop.turns.late_start")
class StartsAtAnyTime(Turns):
    """Lets a replica load its weights in whatever turn it is."""

    @asynccontextmanager
    async def generating(self, worker_id: str) -> AsyncIterator[None]:
        yield


@broken("turns", "loop.turns.cut_short")
class BelievesInTheEnd(Turns):
    """Takes a change that was begun for one that was made."""

    async def train(self) -> None:
        begun_in = self.stage
        try:
            await super().train()
        finally:
            self.stage = Stage.TRAINING if begun_in in FLEETS else self.stage
