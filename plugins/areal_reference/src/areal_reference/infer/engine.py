"""The reference inference engine: the contract's coroutines on top of one compute thread.

Knows: which calls are allowed when, and how an asyncio caller waits for a thread.
Does not know: how a token is computed (`loop`, `runner`), or how weights are checked (`weights`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
import transformers
from attrs import frozen
from safetensors import SafetensorError

from areal_core.contract.errors import BatchError, CapabilityError, GenerationFailed, ModelError
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import (
    KV_USED_SHARE,
    PREFIX_HIT_SHARE,
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
    SamplingParams,
)
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_reference.infer.adapters import NamedAdapters
from areal_reference.infer.cache import CacheSlab
from areal_reference.infer.config import ReferenceInferenceConfig
from areal_reference.infer.loading import LoadedModel, load_model
from areal_reference.infer.loop import GenerationLoop, Outcome
from areal_reference.infer.rows import Ticket
from areal_reference.infer.runner import ModelRunner
from areal_reference.infer.sampling import request_key
from areal_reference.infer.weights import AdapterStage, WeightStage
from areal_serving.requests import check_request
from areal_serving.stopping import StopStrings
from areal_torch import lora
from areal_torch.traces import StepTraces

P = ParamSpec("P")
T = TypeVar("T")
_ONE_TOKEN = SamplingParams(max_new_tokens=1)


@frozen(kw_only=True, eq=False)
class Running:
    """What exists between start and close."""

    spec: InferenceSpec
    loaded: LoadedModel
    stage: WeightStage
    adapters: NamedAdapters
    loop: GenerationLoop
    cache: CacheSlab
    events: asyncio.AbstractEventLoop
    exited: asyncio.Event


class ReferenceInferenceEngine:
    """A small continuous-batching generator for any transformers decoder, on cpu, cuda or npu."""

    def __init__(
        self, config: ReferenceInferenceConfig | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._config = config or ReferenceInferenceConfig()
        self._clock = clock
        self._running: Running | None = None
        self.closed = False
        self._events: asyncio.AbstractEventLoop | None = None
        self._acknowledged: set[asyncio.Future[None]] = set()
        self.callers: dict[Ticket, asyncio.Future[Generation]] = {}
        self._background = ThreadPoolExecutor(1, thread_name_prefix="areal-weights")
        """Loads the model and stages weights, so that neither the event loop nor the compute thread waits."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Load the model and start the compute thread as version 0.

        Raises:
            ModelError: no folder, no causal language model, or an architecture this engine cannot serve.
        """
        events = self._events = asyncio.get_running_loop()
        loaded = await self._aside(load_model, spec)
        cache = CacheSlab(
            loaded.layers,
            max_rows=spec.max_concurrent,
            max_length=loaded.context_length,
            dtype=loaded.dtype,
            device=loaded.device,
        )
        staging = WeightStage if spec.lora is None else AdapterStage
        stage = staging(model=loaded.model, clock=self._clock)
        adapters = NamedAdapters(loaded.model)
        loop = GenerationLoop(
            runner=ModelRunner(loaded, cache),
            stage=stage,
            config=self._config,
            max_rows=spec.max_concurrent,
            deliver=lambda outcomes: self._from_thread(self._resolve, outcomes),
            clock=self._clock,
            traces=StepTraces.asked(os.environ, spec.replica),
            adapters=adapters,
        )
        running = Running(
            spec=spec,
            loaded=loaded,
            stage=stage,
            adapters=adapters,
            loop=loop,
            cache=cache,
            events=events,
            exited=asyncio.Event(),
        )
        self._running = running
        await self._aside(loop.start, lambda: self._from_thread(self._exited, running))
        return EngineInfo(
            engine="reference",
            engine_version=f"transformers {transformers.__version__}, torch {torch.__version__}",
            device=str(loaded.device),
            num_parameters=lora.num_parameters(loaded.model),
            context_length=loaded.context_length,
            details={
                "architecture": type(loaded.model).__name__,
                "dtype": spec.dtype,
                "deterministic_rows": str(loop.tile),
                "forward": "plain" if loop.runner.is_plain else "transformers",
            },
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; cancelling the call frees its row.

        Raises:
            PromptTooLong: no room for one token within the context.
            BatchError: a token id outside the vocabulary, or sampling parameters out of range.
            CapabilityError: an adapter that is not loaded, images or other extras.
            GenerationFailed: the engine is not started, closed, or a step failed.
        """
        running = self.running
        ticket = self.ticket_of(running, request)
        caller: asyncio.Future[Generation] = running.events.create_future()
        self.callers[ticket] = caller
        running.loop.submit(ticket)
        try:
            return await caller
        finally:
            if self.callers.pop(ticket, None) is not None:
                running.loop.cancel(ticket)

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return log p(token t | tokens < t) for each token, 0.0 for the first, between two steps.

        Raises:
            PromptTooLong, BatchError: of the tokens; or the temperature is not positive.
        """
        running = self.running
        if not 0 < temperature < float("inf"):
            raise BatchError(
                f"temperature is {temperature}", why="log-probs need a positive one", fix="for example 1.0"
            )
        asked = GenerationRequest(request_id=RequestId("score"), input_ids=tuple(input_ids), sampling=_ONE_TOKEN)
        self.ticket_of(running, asked)
        found: list[float] = []

        def compute() -> None:
            running.loop.needs_weights()
            found.extend(running.loop.runner.scores(input_ids, temperature))

        await self.between_steps(compute)
        return found

    async def pause(self, mode: PauseMode) -> None:
        """Stop computing tokens before returning; `abort` returns what is in flight."""
        loop = self.running.loop
        await self.between_steps(lambda: loop.pause(abort=PauseMode(mode) is PauseMode.ABORT))

    async def resume(self) -> None:
        """Compute again."""
        await self.between_steps(self.running.loop.resume)

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version while generation goes on.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: what serves is untouched.
        """
        running = self.running
        return await self._aside(running.stage.receive, source, version)

    async def commit_weights(self, version: int) -> None:
        """Swap the staged version in between two steps."""
        loop = self.running.loop
        await self.between_steps(lambda: loop.commit(version))

    async def abort_weights(self) -> None:
        """Drop the staged version, also one that is still arriving."""
        running = self.running
        running.stage.cancel()
        await self._aside(running.stage.abort)

    async def sleep(self) -> None:
        """Free weights and cache. Only when paused. Idempotent.

        Raises:
            GenerationFailed: the engine is not paused.
        """
        if (loop := self.running.loop).paused:
            await self.abort_weights()  # what still arrives has no memory to go to
        await self.between_steps(loop.sleep)

    async def wake(self) -> None:
        """Be ready to receive weights; nothing is computed before they are committed. Idempotent."""
        await self.between_steps(self.running.stage.wake)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it, those in flight keep theirs.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
        """
        running = self.running
        try:
            adapter = await self._aside(running.adapters.read, name, path, version)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"the adapter in {str(path)!r} cannot be read", why=str(error)) from None
        await self.between_steps(lambda: running.adapters.serve(adapter))

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter; requests in flight keep theirs. Idempotent."""
        self.running.adapters.forget(name)

    async def status(self) -> EngineStatus:
        """Return a snapshot without waiting for a step."""
        running = self.running
        loop, cache = running.loop, running.cache
        used = int(loop.rows.positions.sum())
        shared, computed = loop.counters.shared_tokens, loop.counters.prompt_tokens
        return EngineStatus(
            version=running.stage.version,
            num_running=loop.rows.count,
            num_waiting=max(0, len(self.callers) - loop.rows.count),
            paused=loop.paused,
            tokens_generated=loop.counters.tokens,
            busy_s=loop.counters.busy_s,
            metrics={
                KV_USED_SHARE: used / (cache.num_rows * cache.length),
                PREFIX_HIT_SHARE: shared / max(1, shared + computed),
                "rows_allocated": float(cache.num_rows),
                "cache_bytes": float(cache.num_bytes),
                "steps": float(loop.counters.steps),
                "prompt_tokens_computed": float(computed),
                "prompt_tokens_shared": float(shared),
            },
        )

    async def close(self) -> None:
        """Fail waiting calls with GenerationFailed and end the threads. Idempotent."""
        self.closed = True
        running, self._running = self._running, None
        if running is not None:
            running.stage.cancel()
            running.loop.stop()
            await running.exited.wait()
            running.loop.join()
        self._background.shutdown(wait=False, cancel_futures=True)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended since."""
        return self._running is not None

    @property
    def running(self) -> Running:
        """Return what exists between start and close; whoever proves or replaces a part finds it here.

        Raises:
            GenerationFailed: the engine was not started, or is closed.
        """
        if self._running is None:
            raise _closed() if self.closed else GenerationFailed("the engine was not started", fix="call start first")
        return self._running

    async def _aside(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in the background thread.

        Raises:
            GenerationFailed: the engine was closed before the call began.
        """
        if self.closed:
            raise _closed()
        work = asyncio.wrap_future(self._background.submit(call, *args, **kwargs))
        try:
            return await work
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # a coroutine always runs in a task
                raise
            raise _closed() from None

    async def between_steps(self, action: Callable[[], None]) -> None:
        """Run an action in the compute thread between two steps and wait for it."""
        running = self.running
        done: asyncio.Future[None] = running.events.create_future()

        def message() -> None:
            try:
                action()
            except Exception as exc:
                self._from_thread(_settle, done, exc)
            else:
                self._from_thread(_settle, done, None)

        self._acknowledged.add(done)
        running.loop.post(message)
        try:
            await done
        finally:
            self._acknowledged.discard(done)

    def _exited(self, running: Running) -> None:
        """Fail whatever still waits for the compute thread: it has ended, by `close` or by a bug."""
        self._running = None
        waiting: list[asyncio.Future[Generation] | asyncio.Future[None]] = [
            *self.callers.values(),
            *self._acknowledged,
        ]
        for future in waiting:
            if not future.done():
                future.set_exception(_closed())
        running.exited.set()

    def _from_thread(self, function: Callable[..., object], *arguments: object) -> None:
        """Call back into the event loop, unless the loop is gone and with it everybody who waits."""
        if self._events is not None and not self._events.is_closed():
            self._events.call_soon_threadsafe(function, *arguments)

    def _resolve(self, outcomes: Sequence[tuple[Ticket, Outcome]]) -> None:
        for ticket, outcome in outcomes:
            caller = self.callers.pop(ticket, None)
            if caller is None or caller.done():
                continue
            if isinstance(outcome, Generation):
                caller.set_result(outcome)
            else:
                caller.set_exception(outcome)

    def ticket_of(self, running: Running, request: GenerationRequest) -> Ticket:
        """Check a request and work out what its row needs."""
        loaded, sampling = running.loaded, request.sampling
        _refuse(request)
        limit = check_request(request, vocabulary=loaded.vocabulary, context_length=loaded.context_length)
        own = () if sampling.ignore_eos else loaded.end_ids
        return Ticket(
            request=request,
            end_ids=tuple(dict.fromkeys((*own, *sampling.stop_token_ids))),
            key=request_key(sampling.seed, running.spec.seed, request.request_id, running.stage.version),
            limit=limit,
            stop_strings=self._stop_strings(loaded, request),
            arrived_s=self._clock(),
            replay=request.num_prior if self._config.deterministic else 0,
            adapter=running.adapters.find(request.adapter),
        )

    def _stop_strings(self, loaded: LoadedModel, request: GenerationRequest) -> StopStrings | None:
        if not request.sampling.stop:
            return None
        if loaded.tokenizer is None:
            raise GenerationFailed(
                f"request {request.request_id!r} has stop strings, the model folder has no tokenizer",
                fix="save the tokenizer beside the model, or use stop_token_ids",
            )
        watch = StopStrings(loaded.tokenizer, request.sampling.stop)
        for token in request.input_ids[len(request.input_ids) - request.num_prior :]:
            watch.push(token)
        return watch


def _refuse(request: GenerationRequest) -> None:
    """Raise CapabilityError for what the manifest does not claim."""
    if request.structure is not None:
        raise CapabilityError(
            f"request {request.request_id!r} asks for text of a {request.structure.grammar}",
            why="the reference generator has no grammar engine",
            fix="use an inference backend that claims sampling.structured",
        )
    if request.extras:
        raise CapabilityError(
            f"request {request.request_id!r} carries {', '.join(sorted(request.extras))}",
            why="the reference generator takes token ids and nothing else",
            fix="use an inference backend that claims it",
        )


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _closed() -> GenerationFailed:
    return GenerationFailed(
        "the engine is closed",
        why="close() was called, or its compute thread ended",
        fix="send the request to another replica",
    )
