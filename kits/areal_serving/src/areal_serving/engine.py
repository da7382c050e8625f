"""The inference contract over any server that has a dialect.

Knows: which calls are allowed when, and what exists between start and close.
Does not know: routes and payloads (`dialect`), processes (`server_lifecycle`), requests on their way (`calls`),
how weights are staged and loaded (`updates`) or taken in place (`direct`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import ClassVar

from attrs import define, evolve, field, frozen

from areal_core.contract.clock import Clock
from areal_core.contract.errors import CapabilityError, GenerationFailed
from areal_core.contract.inference import (
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
    ReplicaPart,
    Timings,
)
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving import environment
from areal_serving.calls import Calls, State
from areal_serving.dialect import Dialect, Gauges, ServerFacts
from areal_serving.direct import DirectDialect, DirectTransfer
from areal_serving.follower import Follower
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.model import ServedModel
from areal_serving.options import ServedOptions
from areal_serving.outputs import NOTHING, cut_at_stop, generation_of, timings_of
from areal_serving.policy_adapter import AdapterStaging, PolicyAdapter, PolicyRoutes
from areal_serving.profiling import ServedTraces, ServerProfiler
from areal_serving.refusals import refuse_axes
from areal_serving.requests import check_request
from areal_serving.server_lifecycle import ServerLifecycle
from areal_serving.slots import Interrupted, Slots
from areal_serving.staging import Staging
from areal_serving.updates import Loader, Updates
from areal_serving.work import Work
from areal_torch.collective.rank_slot import SlotSource
from areal_torch.profile import asked_of

STATUS_TIMEOUT_S = 2.0
"""A snapshot waits no longer for the server's own counts."""


@frozen(kw_only=True, eq=False)
class Running:
    """What exists between start and close; a backend's optional abilities are made of it.

    `work.alone` does one thing at a time, whoever asked; `state` is what the server serves, or its successor must.
    """

    model: ServedModel
    facts: ServerFacts
    server: ServerLifecycle
    slots: Slots
    calls: Calls
    updates: Updates
    state: State
    work: Work
    traces: ServedTraces
    direct: DirectTransfer | None
    """None unless the backend has it and `options.direct` asks for it."""
    serves_adapter: bool
    """Whether versions of the policy are adapters."""


@define(kw_only=True)
class _Counts:
    """Of this replica, whatever number of servers it had. `base` is what servers that ended had generated."""

    base: int = 0
    last: Gauges = field(factory=lambda: Gauges(num_running=0, num_waiting=0, tokens_generated=0))


class ServedEngine:
    """One replica: one server process, or one server somebody else runs; or its part on one of several hosts.

    A backend subclasses it for its optional abilities and may override `axes`, `refuse`, `cache_space`, `revived` and
    `interpreter`; in the methods `running` is what exists.

    Args:
        direct: how the server's own ranks take weights, for backends that can.
        policy: how the server is told of the adapter that the policy is, for backends that claim `weights.adapter`.
        profiler: how the server's own ranks are traced, for backends that can.
        clock: measures requests.
        patience: measures starts and hangs.
    """

    axes: ClassVar[str] = "t"
    """Along which one replica can be cut, as in backend strings."""

    def __init__(
        self,
        dialect: Dialect,
        options: ServedOptions,
        *,
        direct: DirectDialect | None = None,
        policy: PolicyRoutes | None = None,
        profiler: ServerProfiler | None = None,
        clock: Callable[[], float] = time.perf_counter,
        patience: Clock | None = None,
    ) -> None:
        self.dialect = dialect
        self._options = options
        self._direct = direct if options.direct else None
        self._policy = policy
        self._profiler = profiler
        self._clock = clock
        self._patience = patience
        self._state = State()
        self._life = secrets.token_hex(8)
        """Versions begin anew with every run, and a server of `options.url` still has the cache of the one before."""
        self._counts = _Counts()
        self._work = Work()
        self._now: Running | None = None
        self._follower: Follower | None = None
        self._spans = False
        """Whether this is a part of a replica over several hosts, which nobody mends."""
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        """Of the model's tensors by Hugging Face name, once its folder was read."""
        self._starting: asyncio.Task[tuple[Running, EngineInfo]] | None = None
        self._closing: asyncio.Task[None] | None = None

    # what a backend may override

    def refuse(self, request: GenerationRequest) -> None:
        """Raise CapabilityError for what the manifest does not claim."""

    def cache_space(self, request: GenerationRequest) -> str:
        """Return a name that separates prefix-cache entries made by other weights from those this request may use."""
        return f"{request.adapter}@{self._state.version}@{self._life}"

    async def revived(self, api: Api) -> None:
        """Bring a server that was started again to the state a backend keeps beside weights, adapters for example."""

    def interpreter(self, spec: InferenceSpec) -> str:
        """Return the Python that has the engine, in whose environment the server runs. Called in a thread.

        Raises:
            EngineMissing: there is no environment with the engine.
        """
        return str(environment.find(self.dialect.name, spec.device, python=self._options.python or None).path)

    # the contract

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start a server on the folder, or find the one that runs, as version 0.

        Raises:
            ModelError: the folder is missing or holds no model this engine can serve.
            EngineMissing: there is no environment with the engine.
            WorkerError: the server ended, or did not serve in time.
            GenerationFailed: the engine was closed meanwhile.
            CapabilityError: a layout that such servers cannot have.
        """
        if self._closing is not None:
            raise _closed()
        refuse_axes(spec.layout, self.axes, self.dialect.name)
        part = spec.part
        if part is not None:
            self._spans, spec = True, self._apart(spec)
        if part is not None and not part.leads:
            return await self._follow(spec, part)
        self._starting = starting = asyncio.ensure_future(self._started(spec))
        try:
            await asyncio.wait((starting,))
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.wait((starting,))
            raise
        if starting.cancelled():
            raise _closed()
        self._now, info = starting.result()
        self._starting = None
        return info

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; cancelling the call ends it in the server too.

        Raises:
            PromptTooLong, BatchError, CapabilityError: of the request itself, before anything is sent.
            GenerationFailed: the engine is not started, closed, or lost too many servers.
        """
        running = self.running
        self.refuse(request)
        budget = check_request(
            request, vocabulary=running.model.vocab_size, context_length=running.facts.context_length
        )
        arrived = self._clock()
        try:
            await running.slots.acquire()
        except Interrupted:
            if running.server.lost is not None:
                raise running.server.lost from None
            return generation_of(NOTHING, Timings())
        granted = self._clock()
        try:
            reply = await running.calls.answered(request, budget)
        finally:
            running.slots.release()
        if request.sampling.stop:
            reply = await asyncio.to_thread(cut_at_stop, reply, request, running.model.path)
        return generation_of(reply, timings_of(reply, total_s=self._clock() - arrived, waited_s=granted - arrived))

    async def pause(self, mode: PauseMode) -> None:
        """Stop computing tokens before returning; `abort` returns what is in flight, also what has not begun.

        Raises:
            GenerationFailed: the server does not; it computes as before.
        """
        await self._work.alone(self._pause(self.running, PauseMode(mode)))

    async def resume(self) -> None:
        """Compute again."""
        await self._work.alone(self._resume(self.running))

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version while generation goes on; every engine worker reads it and must agree on each byte.

        With `options.direct`, and a source that has slots, the paused server's own ranks take it in place.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: what serves is untouched, or the server is started again.
        """
        if self._follower is not None:
            return await self._follower.receive(source, version)
        running = self.running
        if running.direct is not None and isinstance(source, SlotSource):
            return await running.direct.receive(source, version)
        return await running.updates.receive(source, version)

    async def commit_weights(self, version: int) -> None:
        """Have the engine load what is held, or serve what it took in place, between two tokens.

        Raises:
            WeightSyncError: another version, or none, is held; or servers fail to load it. The one before serves.
        """
        if self._follower is not None:
            self._follower.commit(version)
            return
        running = self.running
        holder = running.direct if running.direct is not None and running.direct.holds(version) else running.updates
        await self._work.alone(self._committed(running, holder.commit(version)))

    async def abort_weights(self) -> None:
        """Drop the held version, also one that is still arriving. Idempotent."""
        if self._follower is not None:
            self._follower.abort()
            return
        running = self.running
        running.updates.abort()
        if running.direct is not None:
            await running.direct.abort()

    async def status(self) -> EngineStatus:
        """Return a snapshot; with the server's last known counts while it does not tell them.

        Raises:
            GenerationFailed: the server of a replica over several hosts is lost.
        """
        if self._follower is not None:
            return self._follower.status()
        running, counts = self.running, self._counts
        if self._spans and running.server.lost is not None:
            raise running.server.lost
        api = running.server.serving
        if api is not None:
            with contextlib.suppress(ServerGone, ServerAnswer, TimeoutError):  # the server's watch sees to it
                async with asyncio.timeout(STATUS_TIMEOUT_S):
                    gauges = await self.dialect.gauges(api)
                if api is running.server.serving:
                    counts.last = gauges
        paused, num_running = self._state.paused is not None, running.calls.num_running
        if not paused:  # it may compute for a caller gone; once it is paused its own count stands still
            num_running = max(num_running, counts.last.num_running)
        return EngineStatus(
            version=self._state.version,
            num_running=num_running,
            num_waiting=running.slots.num_waiting,
            paused=paused,
            tokens_generated=counts.base + counts.last.tokens_generated,
            busy_s=running.calls.busy_s(),
            metrics={**counts.last.metrics, "num_restarts": float(running.server.num_restarts)},
        )

    async def close(self) -> None:
        """Fail waiting calls with GenerationFailed, end the server, free everything. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    # for backends

    @property
    def running(self) -> Running:
        """Return what exists between start and close.

        Raises:
            GenerationFailed: the engine was not started, or is closed.
            CapabilityError: it is a part of a replica that does not lead.
        """
        if self._closing is not None:
            raise _closed()
        if self._follower is not None:
            raise self._follower.refused()
        if self._now is None:
            raise GenerationFailed("the engine was not started", fix="call start first")
        return self._now

    @property
    def serving(self) -> Api:
        """Return the server; for the conformance suite, which looks behind the contract."""
        api = self.running.server.serving
        assert api is not None, "there is a server once the engine is started"
        return api

    # how

    def _apart(self, spec: InferenceSpec) -> InferenceSpec:
        """Check the spec of a part, and have its process find the model from a folder of its own."""
        if self._options.url or self._options.direct or spec.lora is not None:
            raise CapabilityError(
                f"{self.dialect.name} does not serve a replica over several hosts like this",
                why="its parts are servers of its own, and each takes whole weights where it is: "
                "no rollout.options.url, no rollout.options.direct, no adapter that travels alone",
                fix="take these out, or rollout.placement.num_hosts",
            )
        return evolve(spec, model_path=str(Path(spec.model_path).resolve()))

    async def _follow(self, spec: InferenceSpec, part: ReplicaPart) -> EngineInfo:
        model = await asyncio.to_thread(ServedModel.of, spec.model_path)
        python = await asyncio.to_thread(self.interpreter, spec)
        if self._closing is not None:
            raise _closed()
        self._follower = Follower(self.dialect, spec, part, model=model, python=python)
        return self._follower.info

    async def _started(self, spec: InferenceSpec) -> tuple[Running, EngineInfo]:
        model = await asyncio.to_thread(ServedModel.of, spec.model_path)
        self.shapes = model.shapes
        options, slots, asked = self._options, Slots(spec.max_concurrent), asked_of(os.environ, spec.replica)
        python = "" if options.url else await asyncio.to_thread(self.interpreter, spec)
        server = ServerLifecycle(
            self.dialect,
            spec,
            options,
            python=python,
            revive=self._revive,
            beats=self._beats,
            given_up=slots.close,
            traced=bool(asked.steps and self._profiler and not options.url),
            clock=self._patience,
        )
        try:
            facts = await server.start()
        except BaseException:
            await server.close()
            raise
        traces = ServedTraces(self._profiler, asked, server, name=self.dialect.name)
        calls = Calls(
            self.dialect,
            server,
            self._state,
            self._work,
            traces=traces,
            end_ids=model.end_ids,
            cache_space=self.cache_space,
            clock=self._clock,
        )
        updates = await self._updates(spec, model, server, slots, traces)
        direct = None
        if self._direct is not None and spec.lora is None:
            direct = DirectTransfer(
                self._direct, spec, model=model, server=server, state=self._state, updates=updates, work=self._work
            )
        running = Running(
            model=model,
            facts=facts,
            server=server,
            slots=slots,
            calls=calls,
            updates=updates,
            state=self._state,
            work=self._work,
            traces=traces,
            direct=direct,
            serves_adapter=spec.lora is not None,
        )
        return running, model.info(self.dialect.name, facts, spec)

    async def _updates(
        self, spec: InferenceSpec, model: ServedModel, server: ServerLifecycle, slots: Slots, traces: ServedTraces
    ) -> Updates:
        loader: Loader = self.dialect
        staging, begun = Staging(model, server.folder, alike=spec.part is not None), None
        try:
            if spec.lora is not None:
                if self._policy is None:
                    raise CapabilityError(f"{self.dialect.name} does not serve a policy that is an adapter")
                loader = PolicyAdapter(self.dialect, self._policy, self._state)
                staging = adapters = AdapterStaging(model, server.folder, spec.lora)
                begun = await asyncio.to_thread(adapters.begin) if spec.lora.path else None
            kv = self._options.kv_on_update
            updates = Updates(self.dialect, loader, server, self._state, slots, staging=staging, traces=traces, kv=kv)
            if begun is not None:
                await updates.begin(begun)
        except BaseException:
            await server.close()
            raise
        return updates

    async def _pause(self, running: Running, mode: PauseMode) -> None:
        before, self._state.paused = self._state.paused, mode  # what a server that is started again must do
        running.slots.shut()
        running.calls.note()
        try:
            await running.server.asked(lambda api: self.dialect.pause(api, mode))
            if mode is PauseMode.ABORT:
                running.slots.interrupt()
                await running.calls.drain()
        except GenerationFailed:
            self._state.paused = before
            if before is None and running.server.lost is None:
                await self._resume(running)
            raise

    async def _committed(self, running: Running, commit: Awaitable[None]) -> None:
        """Commit; a request keeps the adapter it was sent with, so with one nothing may be in flight."""
        before = self._state.paused
        if not running.serves_adapter or before is PauseMode.ABORT:
            await commit
            return
        await self._pause(running, PauseMode.ABORT)
        try:
            await commit
        finally:
            await (self._resume(running) if before is None else self._pause(running, before))

    async def _resume(self, running: Running) -> None:
        self._state.paused = None
        await running.updates.resume()
        running.calls.note()

    async def _close(self) -> None:
        if self._follower is not None:
            await self._follower.close()
        starting = self._starting
        if starting is not None:
            starting.cancel()
            await asyncio.wait((starting,))
            if not starting.cancelled() and starting.exception() is None:
                self._now = starting.result()[0]
        running, self._now = self._now, None
        if running is None:
            return
        await running.traces.end()
        await running.server.close()
        running.updates.abort()
        if running.direct is not None:
            running.direct.stop()
        await self._work.end()
        await running.calls.landed()
        running.updates.close()

    async def _revive(self, api: Api) -> None:
        counts, running = self._counts, self._now
        counts.base += counts.last.tokens_generated
        counts.last = evolve(counts.last, tokens_generated=0)
        if running is not None:
            await running.updates.revive(api)
            await self.revived(api)

    async def _beats(self, api: Api) -> tuple[int, bool]:
        gauges, running = await self.dialect.gauges(api), self._now
        return gauges.tokens_generated, running is not None and running.calls.expected


def _closed() -> GenerationFailed:
    return GenerationFailed("the engine is closed", why="close() was called", fix="send the request to another replica")
