"""One inference worker as the pool sees it: its stage, its load, its health, its last error.

Knows: a worker handle and what its calls told.
Does not know: the other replicas, why a request went here, or why the replica comes or goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from areal_core.contract.errors import GenerationFailed, WorkerDied, WorkerError, WorkerTimeout
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.scheduler import Worker
from areal_core.fleet.breaker import Breaker

FAILOVER = (GenerationFailed, WorkerDied, WorkerTimeout)
"""Errors of a replica, not of the request: another replica may do better."""


class ReplicaStage(StrEnum):
    """Where a replica is in its life; it goes down this list and never back."""

    JOINING = "joining"
    """Holds older weights than the fleet: it takes part in updates and serves nothing until one succeeded on it."""
    SERVING = "serving"
    LEAVING = "leaving"
    """Takes part in updates and ends the requests it has; no new one goes there."""
    OUT = "out of service"


class Replica:
    """One replica, the `number`-th that came. `error` is its last one.

    `on_out` hears once that it is out of service, and why; `on_end` of each request that ended.
    """

    def __init__(
        self,
        worker: Worker,
        breaker: Breaker,
        stage: ReplicaStage,
        on_out: Callable[[Replica, BaseException], None],
        on_end: Callable[[Replica], None],
        number: int,
    ) -> None:
        """Start healthy and idle."""
        self.worker, self.number = worker, number
        self.breaker = breaker
        self.stage = stage
        self.in_flight = 0
        self.error: BaseException | None = None
        self.idle = asyncio.Event()
        """Set while no request is in flight."""
        self.idle.set()
        self._on_out, self._on_end = on_out, on_end

    @property
    def id(self) -> str:
        """Return the worker's id."""
        return self.worker.id

    @property
    def healthy(self) -> bool:
        """Return whether it takes part in weight updates: not out of service for good."""
        return self.stage is not ReplicaStage.OUT

    @property
    def joining(self) -> bool:
        """Return whether it waits for the weights the others serve."""
        return self.stage is ReplicaStage.JOINING

    @property
    def usable(self) -> bool:
        """Return whether a request may go there now."""
        return self.stage is ReplicaStage.SERVING and self.breaker.allows

    def take_out(self, error: BaseException) -> None:
        """Take it out of service for good, because of `error`. Idempotent."""
        if self.stage is not ReplicaStage.OUT:
            self.stage, self.error = ReplicaStage.OUT, error
            self._on_out(self, error)

    def begin(self) -> int:
        """Count a request in, before it is sent; returns the ticket to give back when it has ended."""
        self.in_flight += 1
        self.idle.clear()
        return self.breaker.begin()

    def send(self, request: GenerationRequest, timeout_s: float) -> Awaitable[object]:
        """Return the worker's answer to come, not looked at."""
        return self.worker.call("generate", request, timeout_s=timeout_s)

    def ended(self, ticket: int, error: BaseException | None = None) -> Exception | None:
        """End a request, served or with an error, and learn from it: a worker that died is out for good.

        Returns the error if another replica may do better, None if there is none or it is the caller's to raise.
        """
        told = error if isinstance(error, FAILOVER) else None
        if told is not None:
            self.error = told
            self.breaker.failure(ticket)
            if isinstance(told, WorkerDied):
                self.take_out(told)
        elif error is None:
            self.breaker.success(ticket)
        else:
            self.breaker.cancelled(ticket)
            if isinstance(error, WorkerError) and not self.healthy:
                told = GenerationFailed(f"{self.id} was ended while it served a request", why=error.what)
                told.__cause__ = error
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()
        self._on_end(self)
        return told

    def describe(self) -> str:
        """Return one paragraph for an error message: id, state, last error."""
        state = f"circuit {self.breaker.state}" if self.stage is ReplicaStage.SERVING else str(self.stage)
        return f"{self.id} ({state}): {_told(self.error)}"


def checked_generation(generation: object, worker_id: str) -> Generation:
    """Return an answer, unless it is not whole: every token has a log-prob and exactly one version.

    Raises:
        GenerationFailed: names the replica and what does not fit.
    """
    if not isinstance(generation, Generation):
        raise GenerationFailed(f"{worker_id} answered with {type(generation).__name__}", why="not a Generation")
    length = len(generation.output_ids)
    if len(generation.logprobs) != length:
        raise GenerationFailed(f"{worker_id} gave {len(generation.logprobs)} log-probs for {length} tokens")
    end, version = 0, -1
    for span in generation.version_spans:
        if span.start != end or span.stop <= span.start or span.version < version:
            raise GenerationFailed(
                f"{worker_id} gave version spans that do not fit: {generation.version_spans}",
                why="they must cover every token once, in order, with versions that never decrease",
            )
        end, version = span.stop, span.version
    if end != length:
        raise GenerationFailed(f"{worker_id} stamped versions on {end} of {length} tokens")
    return generation


def _told(error: BaseException | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {error}"
