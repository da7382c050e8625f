"""The inference contract over any server that has a dialect.

Knows: which calls are allowed when, versions, pauses, what a continued request needs, what a lost server costs.
Does not know: routes and bodies (`dialect`), processes (`supervision`), the form of staged weights (`staging`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import define, evolve, field, frozen
from xxhash import xxh3_64_intdigest

from areal_core.contract.errors import BatchError, FingerprintMismatch, GenerationFailed, WeightSyncError
from areal_core.contract.inference import (
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
    Timings,
)
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.serving import environment
from areal_core.serving.dialect import Call, Dialect, Gauges, Reply, ServerFacts
from areal_core.serving.http import Api, ServerAnswer, ServerGone
from areal_core.serving.model import ServedModel
from areal_core.serving.options import CacheOnUpdate, ServedOptions
from areal_core.serving.outputs import EMPTY, cut_at_stop, generation_of
from areal_core.serving.requests import check_request
from areal_core.serving.slots import Interrupted, Slots
from areal_core.serving.staging import StagedWeights, Staging
from areal_core.serving.supervision import SupervisedServer

MAX_ATTEMPTS = 4
"""Servers one call may lose before the pool is told."""
_SEED_BITS = 2**63 - 1


@frozen(kw_only=True, eq=False)
class _Running:
    """What exists between start and close."""

    spec: InferenceSpec
    model: ServedModel
    facts: ServerFacts
    server: SupervisedServer
    staging: Staging
    slots: Slots
    background: ThreadPoolExecutor


@define(kw_only=True)
class _Weights:
    """Which version serves, what is held for the next, and what a server that comes back must load."""

    version: int = 0
    served: StagedWeights | None = None
    held: StagedWeights | None = None

    def close(self) -> None:
        for staged in (self.served, self.held):
            if staged is not None:
                staged.close()
        self.served = self.held = None


@define(kw_only=True)
class _Counters:
    """Of this replica, whatever number of servers it had. `base` is what dead servers had generated."""

    base: int = 0
    gauges: Gauges = field(factory=lambda: Gauges(num_running=0, num_waiting=0, tokens_generated=0))
    busy_s: float = 0.0
    busy_since: float | None = None


class ServedEngine:
    """One replica: one server process, or one server somebody else runs.

    A backend subclasses it for its optional abilities and may override `refuse` and `revived`.
    """

    def __init__(
        self, dialect: Dialect, options: ServedOptions, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._dialect = dialect
        self._options = options
        self._clock = clock
        self._running: _Running | None = None
        self._closed = False
        self._weights = _Weights()
        self._counters = _Counters()
        self._paused: PauseMode | None = None
        self._calls: dict[str, asyncio.Event] = {}
        self._numbers = itertools.count(1)
        self._changing = asyncio.Lock()
        """Held by whatever pauses, resumes or changes weights."""
        self._tasks: set[asyncio.Task[Any]] = set()  # Any: results nobody reads

    # what a backend may override

    def refuse(self, request: GenerationRequest) -> None:
        """Raise CapabilityError for what the manifest does not claim."""

    async def revived(self, api: Api) -> None:
        """Bring a server that was started again to the state a backend keeps beside weights, adapters for example."""

    # the contract

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start a server on the folder, or find the one that runs, as version 0.

        Raises:
            ModelError: the folder is missing or holds no model this engine can serve.
            EngineMissing: there is no environment with the engine.
            WorkerError: the server ended, or did not serve in time.
        """
        background = ThreadPoolExecutor(1, thread_name_prefix="areal-staging")
        model = await asyncio.get_running_loop().run_in_executor(background, ServedModel.of, spec.model_path)
        python = "" if self._options.url else self._python(spec)
        server = SupervisedServer(
            self._dialect, spec, self._options, python=python, revive=self._revive, beats=self._beats
        )
        try:
            facts = await server.start()
        except BaseException:
            await server.close()
            background.shutdown(wait=False)
            raise
        self._running = _Running(
            spec=spec,
            model=model,
            facts=facts,
            server=server,
            staging=Staging(model, server.folder),
            slots=Slots(spec.max_concurrent),
            background=background,
        )
        return EngineInfo(
            engine=self._dialect.name,
            engine_version=facts.engine_version,
            device=spec.device,
            num_parameters=model.num_parameters,
            context_length=facts.context_length,
            details={"architecture": model.architecture, "dtype": spec.dtype, **facts.details},
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; cancelling the call ends it in the server too.

        Raises:
            PromptTooLong, BatchError, CapabilityError: of the request itself, before anything is sent.
            GenerationFailed: the engine is not started, closed, or lost too many servers.
        """
        running = self._require()
        self.refuse(request)
        budget = check_request(
            request, vocabulary=running.model.vocab_size, context_length=running.facts.context_length
        )
        arrived = self._clock()
        try:
            await running.slots.acquire()
        except Interrupted:
            return EMPTY
        self._busy()
        try:
            granted = self._clock()
            reply = await self._served(running, request, budget)
        finally:
            running.slots.release()
            self._busy()
        ended = self._clock()
        timings = Timings(
            queued_s=granted - arrived + reply.queued_s, first_token_s=reply.first_token_s, total_s=ended - arrived
        )
        if request.sampling.stop:
            reply = await asyncio.to_thread(cut_at_stop, reply, request, running.model.path)
        return generation_of(reply, timings)

    async def pause(self, mode: PauseMode) -> None:
        """Stop computing tokens before returning; `abort` returns what is in flight, also what has not begun."""
        running = self._require()
        async with self._changing:
            running.slots.shut()
            api = await running.server.api()
            await self._told(self._dialect.pause(api, PauseMode(mode)))
            self._paused = PauseMode(mode)
            if self._paused is PauseMode.ABORT:
                running.slots.interrupt()
                await self._drain(running)
            self._busy()

    async def resume(self) -> None:
        """Compute again."""
        running = self._require()
        async with self._changing:
            if self._paused is not None:
                await self._told(self._dialect.resume(await running.server.api()))
                self._paused = None
            running.slots.open()
            self._busy()

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version while generation goes on; every engine worker reads it and must agree on each byte.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: what serves is untouched.
        """
        running = self._require()
        staged: StagedWeights = await self._in_background(self._stage, running, source, version)
        try:
            api = await running.server.api()
            proved = await self._told(self._dialect.prove(api, staged.folder))
            _compare(staged.receipt, proved)
        except BaseException as error:
            if self._weights.held is not staged and isinstance(error, Exception):
                raise WeightSyncError(f"receiving version {version} was aborted") from error
            self._drop_held(staged)
            raise
        if self._weights.held is not staged:
            raise WeightSyncError(f"receiving version {version} was aborted")
        return staged.receipt

    async def commit_weights(self, version: int) -> None:
        """Have the engine load what is held, between two tokens.

        Raises:
            WeightSyncError: another version, or none, is held.
        """
        running = self._require()
        async with self._changing:
            held = self._weights.held
            if version == self._weights.version and held is None:
                return
            if held is None or held.version != version:
                raise WeightSyncError(
                    f"version {version} cannot be committed",
                    why="nothing is held" if held is None else f"version {held.version} is held",
                    fix="call receive_weights for it first",
                )
            async with self._frozen(running) as api:
                await self._load(api, held)
                before, self._weights.served = self._weights.served, held
                self._weights.held, self._weights.version = None, version
            if before is not None:
                before.close()

    async def abort_weights(self) -> None:
        """Drop the held version, also one that is still arriving. Idempotent."""
        running = self._require()
        running.staging.cancel()
        await self._in_background(lambda: None)
        self._drop_held(self._weights.held)

    async def status(self) -> EngineStatus:
        """Return a snapshot; the last one known while a server is brought back."""
        running = self._require()
        api = running.server.serving
        if api is not None:
            with contextlib.suppress(ServerGone, ServerAnswer):  # the supervision sees it; a snapshot never fails
                self._counters.gauges = await self._dialect.gauges(api)
        counters = self._counters
        self._busy()
        return EngineStatus(
            version=self._weights.version,
            num_running=len(self._calls),
            num_waiting=running.slots.num_waiting,
            paused=self._paused is not None,
            tokens_generated=counters.base + counters.gauges.tokens_generated,
            busy_s=counters.busy_s,
            metrics={**counters.gauges.metrics, "num_restarts": float(running.server.num_restarts)},
        )

    async def close(self) -> None:
        """Fail waiting calls with GenerationFailed, end the server, free everything. Idempotent."""
        self._closed = True
        running, self._running = self._running, None
        if running is None:
            return
        running.slots.shut()
        running.slots.interrupt(_closed())
        running.staging.cancel()
        await running.server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._calls:
            await next(iter(self._calls.values())).wait()
        await asyncio.to_thread(running.background.shutdown)
        self._weights.close()

    # requests

    async def _served(self, running: _Running, request: GenerationRequest, budget: int) -> Reply:
        """Ask the server, or the one after it, until one answers."""
        for _ in range(MAX_ATTEMPTS):
            api = await running.server.api()
            call = self._call(running, request, budget)
            ended = self._calls[call.server_id] = asyncio.Event()
            try:
                return await self._dialect.generate(api, call)
            except asyncio.CancelledError:
                self._later(self._end_call(api, call.server_id))
                raise
            except ServerGone:
                if self._closed:
                    raise _closed() from None
                await running.server.gone(api)
            except ServerAnswer as error:
                if error.status == 503 and self._paused is PauseMode.ABORT:
                    return Reply(output_ids=(), logprobs=(), spans=(), finish="abort")
                if error.status in (400, 422):
                    raise BatchError(
                        f"{self._dialect.name} refused request {request.request_id!r}", why=error.text
                    ) from error
                raise GenerationFailed(
                    f"{self._dialect.name} failed request {request.request_id!r}", why=str(error)
                ) from error
            finally:
                self._calls.pop(call.server_id, None)
                ended.set()
        raise GenerationFailed(
            f"request {request.request_id!r} had no answer from {MAX_ATTEMPTS} servers",
            why="each ended or dropped the connection while it computed",
            fix="read the worker's log",
        )

    def _call(self, running: _Running, request: GenerationRequest, budget: int) -> Call:
        sampling, prior = request.sampling, request.num_prior
        own = () if sampling.ignore_eos else running.model.end_ids
        return Call(
            request=request,
            server_id=f"areal-{next(self._numbers)}",
            max_tokens=budget,
            min_tokens=min(max(0, sampling.min_new_tokens - prior), budget),
            seed=_seed(sampling.seed, prior),
            end_ids=tuple(dict.fromkeys((*own, *sampling.stop_token_ids))),
            cache_space=f"{request.adapter}@{self._weights.version}",
        )

    async def _end_call(self, api: Api, server_id: str) -> None:
        """End a call whose caller is gone; it counts as running until the server was told."""
        ended = self._calls[server_id] = asyncio.Event()
        try:
            with contextlib.suppress(ServerGone, ServerAnswer):
                await self._dialect.abort(api, [server_id])
        finally:
            self._calls.pop(server_id, None)
            ended.set()

    async def _drain(self, running: _Running) -> None:
        """Wait until every call in flight came back; one that reached the server after the pause is ended."""
        while self._calls:
            waiting = dict(self._calls)
            api = await running.server.api()
            await self._told(self._dialect.abort(api, list(waiting)))
            await asyncio.wait([asyncio.ensure_future(ended.wait()) for ended in waiting.values()], timeout=0.05)

    # weights

    def _stage(self, running: _Running, source: WeightSource, version: int) -> StagedWeights:
        staged = running.staging.receive(source, version, served=self._weights.version)
        before, self._weights.held = self._weights.held, staged
        if before is not None:
            before.close()
        return staged

    def _drop_held(self, staged: StagedWeights | None) -> None:
        if staged is not None and self._weights.held is staged:
            self._weights.held = None
            staged.close()

    async def _load(self, api: Api, staged: StagedWeights) -> None:
        keep = self._options.kv_on_update is CacheOnUpdate.KEEP
        await self._told(self._dialect.load(api, staged.folder, staged.version, keep_cache=keep))

    @contextlib.asynccontextmanager
    async def _frozen(self, running: _Running) -> AsyncIterator[Api]:
        """Have no token computed and no request sent within the block. With `_changing` held."""
        running.slots.shut()
        api = await running.server.api()
        if self._paused is None:
            await self._told(self._dialect.pause(api, PauseMode.KEEP))
        try:
            yield api
        finally:
            if self._paused is None:
                await self._told(self._dialect.resume(api))
                running.slots.open()

    async def _revive(self, api: Api) -> None:
        """Bring a server that was started again to the weights and the pause of the one that died."""
        self._counters.base += self._counters.gauges.tokens_generated
        self._counters.gauges = evolve(self._counters.gauges, tokens_generated=0)
        served = self._weights.served
        if served is None and self._weights.version > 0:
            raise GenerationFailed(
                f"weights of version {self._weights.version} are not held by this worker",
                why="they were received by the engine's own workers (rollout.options.direct)",
            )
        if served is not None or self._paused is not None:
            await self._dialect.pause(api, self._paused or PauseMode.KEEP)
            if served is not None:
                await self._load(api, served)
            if self._paused is None:
                await self._dialect.resume(api)
        await self.revived(api)

    # what all of them need

    async def _beats(self, api: Api) -> tuple[int, bool]:
        gauges = await self._dialect.gauges(api)
        return gauges.tokens_generated, bool(self._calls) and self._paused is None

    async def _api(self) -> Api:
        """Return the server, for a backend's optional abilities."""
        return await self._require().server.api()

    async def _told(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Await a dialect's call that must succeed. Any: what it returns.

        Raises:
            GenerationFailed: no answer, or no success.
        """
        try:
            return await answer
        except (ServerGone, ServerAnswer) as error:
            if self._closed:
                raise _closed() from error
            raise GenerationFailed(f"the {self._dialect.name} server failed", why=str(error)) from error

    async def _in_background(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run in the one staging thread, after what it does now. Any: the function's own."""
        running = self._require()
        return await asyncio.get_running_loop().run_in_executor(running.background, function, *arguments)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _busy(self) -> None:
        """Add up the time in which at least one request was computed."""
        counters, now = self._counters, self._clock()
        if counters.busy_since is not None:
            counters.busy_s += now - counters.busy_since
        counters.busy_since = now if self._calls and self._paused is None else None

    def _python(self, spec: InferenceSpec) -> str:
        found = environment.find(self._dialect.name, spec.device, python=self._options.python or None)
        return str(found.path)

    def _require(self) -> _Running:
        if self._running is None:
            raise _closed() if self._closed else GenerationFailed("the engine was not started", fix="call start first")
        return self._running


def _seed(seed: int | None, prior: int) -> int | None:
    """Return the seed of one part of a request: a continued one must not draw its first numbers again."""
    if seed is None or prior == 0:
        return seed
    return xxh3_64_intdigest(f"{seed}+{prior}".encode()) & _SEED_BITS


def _compare(receipt: Receipt, proved: Any) -> None:
    wrong = [name for name, digits in receipt.fingerprints.items() if proved.get(name) != digits]
    if wrong:
        raise FingerprintMismatch(
            f"the engine's workers read other bytes of {wrong[0]!r} than were staged",
            why=f"{len(wrong)} of {len(receipt.fingerprints)} tensors differ",
            fix="look for failing memory, or a folder changed by somebody else",
        )


def _closed() -> GenerationFailed:
    return GenerationFailed("the engine is closed", why="close() was called", fix="send the request to another replica")
