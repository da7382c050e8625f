"""A served engine that gives its memory back and takes it again: the claim `memory.sleep`.

Knows: when a server may sleep, and that one that slept computes nothing before it was given weights.
Does not know: how a server frees memory, which its backend says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from areal_core.contract.device import CPU
from areal_core.contract.errors import CapabilityError, GenerationFailed
from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_core.contract.train import EngineInfo
from areal_serving.engine import Running, ServedEngine
from areal_serving.http import Api


class SleepingEngine(ServedEngine, ABC):
    """One replica that can sleep. A backend says with `put_to_sleep` and `wake_up` how its server does."""

    can_sleep = False
    """Whether `rollout.options.sleep` is on."""
    on_cpu = False
    _asleep = False
    _empty = False
    """Whether it slept, and no version was committed since."""

    @abstractmethod
    async def put_to_sleep(self, api: Api) -> None:
        """Have the server free weights and cache; nothing runs."""

    @abstractmethod
    async def wake_up(self, api: Api) -> None:
        """Have the server take the memory again."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start a server on the folder, or find the one that runs, as version 0."""
        self.on_cpu = spec.device == CPU
        return await super().start(spec)

    async def revived(self, api: Api) -> None:
        """Have a server that was started again sleep if the one before did."""
        if self._asleep:
            await self.put_to_sleep(api)

    async def sleep(self) -> None:
        """Free weights and cache; what was frozen comes back as it is. Only when paused. Idempotent.

        Raises:
            CapabilityError: `rollout.options.sleep` is off.
            GenerationFailed: the engine is not paused.
        """
        running = self._able()
        if running.state.paused is None:
            raise GenerationFailed("the server cannot sleep", why="it is not paused", fix="call pause first")
        if self._asleep:
            return
        await self.pause(PauseMode.ABORT)
        self._empty = True
        await running.server.asked(self.put_to_sleep)
        self._asleep = True

    async def wake(self) -> None:
        """Take the memory again; weights must be received before generating. Idempotent."""
        running = self._able()
        if self._asleep:
            await running.server.asked(self._wake_whole)
        self._asleep = False

    async def resume(self) -> None:
        """Compute again.

        Raises:
            GenerationFailed: it slept, and was given no weights since.
        """
        self.expect_weights()
        await super().resume()

    async def commit_weights(self, version: int) -> None:
        """Have the server load what is held, or serve what it took in place, between two tokens.

        Raises:
            WeightSyncError: another version, or none, is held; or servers fail to load it.
        """
        await super().commit_weights(version)
        self._empty = False

    def expect_weights(self) -> None:
        """Raise GenerationFailed if there is nothing to compute with."""
        if self._empty:
            raise GenerationFailed(
                "the server has no weights", why="it slept", fix="call wake, receive_weights and commit_weights first"
            )

    async def _wake_whole(self, api: Api) -> None:
        """Wake, and load the model that a policy is an adapter of, which no version brings.

        One question, so that a server that ends in between, whose successor sleeps, is asked both again.
        """
        running = self.running
        await self.wake_up(api)
        if running.serves_adapter:
            await self.dialect.load(api, running.model.path, running.state.version, keep_cache=True)

    def _able(self) -> Running:
        running = self.running
        if not self.can_sleep:
            raise CapabilityError(
                "the server cannot sleep",
                why="rollout.options.sleep is off",
                fix="set it, or placement=shared, which does",
            )
        return running
