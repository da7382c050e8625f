"""An inference fleet in this process: real routing and real interruptions, no model, no seconds.

Knows: the contract of an inference engine and of a worker, a clock, a script of what goes wrong.
Does not know: any model. A token depends on the request's seed and the token's position, so a
continued request gives the tokens an uninterrupted one would have given.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from areal_core.contract.clock import Clock
from areal_core.contract.data import StopReason
from areal_core.contract.errors import PromptTooLong, RemoteError, WorkerDied, WorkerError, WorkerTimeout
from areal_core.contract.inference import (
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
    Timings,
    VersionSpan,
)
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Offer, Receipt

END_TOKEN = 1
FIRST_TOKEN = 3
NUM_TOKENS = 28
"""Generated ids are in [FIRST_TOKEN, FIRST_TOKEN + NUM_TOKENS), the last one is END_TOKEN."""

Length = Callable[[GenerationRequest], int]


def seeded_length(shortest: int = 1, longest: int = 8) -> Length:
    """Return a length between the two that depends on the request's seed alone."""
    return lambda request: shortest + _hash("length", request.sampling.seed) % (longest - shortest + 1)


def scripted_token(seed: int | None, position: int) -> int:
    """Return the output token at a position, END_TOKEN excepted."""
    return FIRST_TOKEN + _hash(seed, position) % NUM_TOKENS


class ScriptedEngine:
    """Implements `InferenceEngine`: each token takes `token_s` on the clock and carries the version of its moment."""

    def __init__(
        self, clock: Clock, *, token_s: float = 1.0, length: Length | None = None, context_length: int = 0
    ) -> None:
        """Serve version 0. `length` tells how many tokens a request has in all, the end token included."""
        self.version = 0
        self.requests: list[GenerationRequest] = []
        self._clock = clock
        self._token_s = token_s
        self._length = length or seeded_length()
        self._context_length = context_length
        self._staged: int | None = None
        self._running = asyncio.Event()
        self._running.set()
        self._producers: dict[asyncio.Task[None], bool] = {}
        self._num_tokens = 0

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Report a model of the tokens above."""
        return EngineInfo(
            engine="scripted",
            engine_version="0",
            device=spec.device,
            num_parameters=0,
            context_length=self._context_length,
            details={"replica": str(spec.replica)},
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        """Produce tokens until the scripted length, the budget, or an abort."""
        self.requests.append(request)
        if self._context_length and len(request.input_ids) >= self._context_length:
            raise PromptTooLong(f"{len(request.input_ids)} tokens do not fit", why=f"context {self._context_length}")
        began = self._clock.now()
        ids: list[int] = []
        versions: list[int] = []
        producer = asyncio.create_task(self._produce(request, ids, versions))
        self._producers[producer] = False
        try:
            await producer
        except asyncio.CancelledError:
            if not self._producers[producer]:
                producer.cancel()
                raise
        finally:
            aborted = self._producers.pop(producer)
        ended = bool(ids) and ids[-1] == END_TOKEN
        full = len(ids) >= request.sampling.max_new_tokens
        reason = StopReason.STOP if ended else StopReason.LENGTH if full or not aborted else StopReason.ABORTED
        return Generation(
            output_ids=tuple(ids),
            logprobs=tuple(-token / 100 for token in ids),
            version_spans=spans_of(versions),
            stop_reason=reason,
            timings=Timings(total_s=self._clock.now() - began),
        )

    async def pause(self, mode: PauseMode) -> None:
        """Stop every request, or end them with what they have."""
        self._running.clear()
        if PauseMode(mode) is PauseMode.ABORT:
            for producer in self._producers:
                self._producers[producer] = True
                producer.cancel()

    async def resume(self) -> None:
        """Go on."""
        self._running.set()

    async def receive_weights(self, offer: Offer, version: int) -> Receipt:
        """Hold a version ready. The offer itself stands in for the weights."""
        self._staged = version
        return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={})

    async def commit_weights(self, version: int) -> None:
        """Serve the version held ready."""
        assert self._staged == version, f"version {version} was never received"
        self.version, self._staged = version, None

    async def abort_weights(self) -> None:
        """Forget the version held ready."""
        self._staged = None

    async def status(self) -> EngineStatus:
        """Return a snapshot."""
        return EngineStatus(
            version=self.version,
            num_running=len(self._producers),
            num_waiting=0,
            paused=not self._running.is_set(),
            tokens_generated=self._num_tokens,
        )

    async def close(self) -> None:
        """Do nothing."""

    async def _produce(self, request: GenerationRequest, ids: list[int], versions: list[int]) -> None:
        seed, length = request.sampling.seed, self._length(request)
        while len(ids) < request.sampling.max_new_tokens:
            await self._running.wait()
            await self._clock.sleep(self._token_s)
            await self._running.wait()
            position = request.num_prior + len(ids)
            last = position + 1 >= length and position + 1 >= request.sampling.min_new_tokens
            ids.append(END_TOKEN if last else scripted_token(seed, position))
            versions.append(self.version)
            self._num_tokens += 1
            if last:
                return


class ScriptedWorker:
    """Implements `Worker` around an engine in this process, and goes wrong when told to."""

    def __init__(self, engine: ScriptedEngine, *, id: str = "infer/0", clock: Clock) -> None:
        """Answer every call with the engine's own method."""
        self.id = id
        self.host = "127.0.0.1"
        self.engine = engine
        self.calls: list[str] = []
        self._clock = clock
        self._failures: list[Exception] = []
        self._hanging = False
        self._death: asyncio.Future[None] | None = None
        self._log_tail: tuple[str, ...] = ()
        self.dead = False

    def fail(self, error: Exception, times: int = 1) -> None:
        """Answer the next `times` generate calls with an error."""
        self._failures += [error] * times

    def hang(self) -> None:
        """Answer no generate call any more; each ends at its timeout."""
        self._hanging = True

    def die(self, log_tail: Sequence[str] = ("Killed",)) -> None:
        """End as by kill -9: calls in flight and later ones raise WorkerDied."""
        self.dead, self._log_tail = True, tuple(log_tail)
        if self._death is not None and not self._death.done():
            self._death.set_result(None)

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call the engine. Any: as in the contract."""
        self.calls.append(method)
        if self.dead:
            raise self._died()
        if method == "generate" and self._failures:
            raise self._failures.pop(0)
        if method == "generate" and self._hanging:
            await self._clock.sleep(timeout_s)
            raise WorkerTimeout(f"worker {self.id} did not answer generate within {timeout_s:g} s")
        if self._death is None:
            self._death = asyncio.get_running_loop().create_future()
        found = getattr(self.engine, method, None)  # by name, as a real host looks it up
        if found is None:
            raise RemoteError(f"worker {self.id} has no method {method!r}")
        answer = asyncio.ensure_future(found(*args))
        try:
            await asyncio.wait((answer, self._death), return_when=asyncio.FIRST_COMPLETED)
            if self.dead:
                raise self._died()
            return answer.result()
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait((answer,))

    def _died(self) -> WorkerError:
        role, _, rank = self.id.partition("/")
        return WorkerDied(
            f"worker {self.id} died",
            why=f"role {role}, rank {rank}, exit code -9; last log lines:\n" + "\n".join(self._log_tail),
        )


def spans_of(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Return the version spans of one version per token."""
    starts = [i for i in range(len(versions)) if i == 0 or versions[i] != versions[i - 1]]
    return tuple(
        VersionSpan(start=start, stop=stop, version=versions[start])
        for start, stop in itertools.pairwise([*starts, len(versions)])
    )


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")
