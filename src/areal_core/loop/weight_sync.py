"""One weight update of the whole fleet: all of it or nothing of it (law 7).

    open -> send (every trainer rank) -> receive (every replica) -> compare receipts -> commit -> release

Knows: the order of phases, what may fail in each, and who is left out.
Does not know: how bytes travel, or what a request in flight is.

Before commit any fault leaves the fleet on the old version. A commit cannot be taken back, so
a replica that fails it is taken out of service: whoever serves, serves the new version.
Generation goes on during send and receive when the engine stages weights beside the old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

from attrs import frozen

from areal_core.contract.errors import (
    ArealError,
    NoReplica,
    VersionRegressed,
    WeightSyncError,
    WorkerDied,
    WorkerTimeout,
)
from areal_core.contract.inference import PauseMode
from areal_core.contract.scheduler import Worker
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.runtime.clock import Clock, SystemClock
from areal_core.weights.coverage import compare

T = TypeVar("T")


class Replica(Protocol):
    """The part of a pool's replica an update needs."""

    @property
    def worker(self) -> Worker:
        """Return the handle on its process."""

    @property
    def healthy(self) -> bool:
        """Return whether it takes part in updates; once False, False for good."""


class Fleet(Protocol):
    """The part of the inference pool an update needs."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """Return every replica, in service or not."""

    def suspend(self) -> None:
        """Hold new requests back. Requests in flight go on."""

    def release(self) -> None:
        """Let requests through again."""

    def exclude(self, worker_id: str, error: BaseException) -> None:
        """Take a replica out of service for good."""


@frozen(kw_only=True)
class WeightUpdate:
    """What one update did.

    `unchanged` counts tensors whose bytes are those of the update before: all of them means
    that the trainer's step did not reach the weights it sends. `phases` are seconds by name.
    """

    version: int
    num_tensors: int
    num_bytes: int
    unchanged: int
    seconds: float
    phases: Mapping[str, float]
    excluded: tuple[str, ...] = ()


class WeightSync:
    """Brings the fleet from one version to the next. One per run; updates never overlap.

    Args:
        trainers: every rank of the actor, in rank order; rank 0 holds the sending end.
        pool: the inference fleet.
        transport: the controller's end of the transport.
        pause: how engines pause for the commit; None where they take it while generating.
        staged: whether engines receive beside the weights they serve; if not they are paused
            from before the first byte.
        timeout_s: bound of each phase.
        version: the version the fleet serves now.
    """

    def __init__(
        self,
        *,
        trainers: Sequence[Worker],
        pool: Fleet,
        transport: WeightTransport,
        pause: PauseMode | None,
        timeout_s: float,
        staged: bool = True,
        version: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._trainers = tuple(trainers)
        self._pool = pool
        self._transport = transport
        self._staged = staged
        # An engine that cannot stage must not generate from half of the new weights.
        self._pause = pause if staged else (pause or PauseMode.KEEP)
        self._timeout_s = timeout_s
        self._clock: Clock = clock or SystemClock()
        self._version = version
        self._fingerprints: Mapping[str, str] = {}
        self._excluded: list[str] = []
        self._phases: dict[str, float] = {}
        self._lock = asyncio.Lock()

    @property
    def version(self) -> int:
        """Return the version every replica in service serves."""
        return self._version

    async def update(self, version: int) -> WeightUpdate:
        """Bring the trainer's weights to every replica in service, as `version`.

        Raises:
            VersionRegressed: `version` is not newer than the one served.
            WeightSyncError: nothing changed; the fleet serves the version it served before.
            NoReplica: no replica survived the update.
            ArealError: whatever a trainer rank raised; nothing changed either.
        """
        async with self._lock:
            if version <= self._version:
                raise VersionRegressed(
                    f"version {version} was to be sent to the fleet", why=f"it already serves {self._version}"
                )
            self._excluded, self._phases = [], {}
            started = self._clock.now()
            sent = await self._transfer(version)
            unchanged = sum(self._fingerprints.get(name) == digits for name, digits in sent.fingerprints.items())
            self._fingerprints = sent.fingerprints
            return WeightUpdate(
                version=version,
                num_tensors=len(sent.fingerprints),
                num_bytes=sent.num_bytes,
                unchanged=unchanged,
                seconds=self._clock.now() - started,
                phases=dict(self._phases),
                excluded=tuple(self._excluded),
            )

    async def _transfer(self, version: int) -> Receipt:
        opening = asyncio.ensure_future(asyncio.to_thread(self._transport.open, version))
        try:
            offer = await asyncio.shield(opening)
            with self._timed("send"):
                sent = await self._send(offer)
            if self._staged:
                await self._receive(offer, sent)
                await _to_the_end(self._flip(version))
            else:
                async with self._paused():
                    await self._receive(offer, sent)
                    await _to_the_end(self._commit(version))
            return sent
        finally:
            await _to_the_end(self._release(opening))

    async def _release(self, opening: asyncio.Future[Offer]) -> None:
        """Release what was opened, also when nobody waited for the opening to end."""
        await asyncio.wait({opening})
        if opening.exception() is None:
            await asyncio.to_thread(self._transport.release, opening.result())

    async def _send(self, offer: Offer) -> Receipt:
        """Call every rank; the first failure ends the wait, for the others wait for the one that failed."""
        calls = [
            asyncio.ensure_future(
                worker.call("send_weights", offer if rank == 0 else None, offer.version, timeout_s=self._timeout_s)
            )
            for rank, worker in enumerate(self._trainers)
        ]
        try:
            receipts = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        if not isinstance(receipts[0], Receipt) or receipts[0].version != offer.version:
            raise WeightSyncError(
                f"{self._trainers[0].id} gave no receipt for version {offer.version}",
                why=f"it returned {receipts[0]!r:.200}",
            )
        return receipts[0]

    async def _receive(self, offer: Offer, sent: Receipt) -> None:
        """Hand the offer to every replica; on return every one left in service provably holds the version."""
        replicas = self._in_service()
        try:
            with self._timed("receive"):
                results = await self._each(replicas, "receive_weights", offer, offer.version)
            alive = [r for r in replicas if not isinstance(results[r.worker.id], WorkerDied | WorkerTimeout)]
            for replica in replicas:
                result = results[replica.worker.id]
                if replica in alive or not alive:
                    _check(sent, result, replica.worker.id)
                elif isinstance(result, Exception):
                    self._exclude(replica, result)
        except BaseException:
            await _to_the_end(self._abort(replicas))
            raise

    async def _abort(self, replicas: Sequence[Replica]) -> None:
        """Have replicas drop what they hold; one that cannot is in a state nobody knows, and goes."""
        results = await self._each(replicas, "abort_weights")
        for replica in replicas:
            result = results[replica.worker.id]
            if isinstance(result, Exception):
                self._exclude(replica, result)

    async def _flip(self, version: int) -> None:
        async with self._paused():
            await self._commit(version)

    async def _commit(self, version: int) -> None:
        replicas = self._in_service()
        with self._timed("commit"):
            results = await self._each(replicas, "commit_weights", version)
        for replica in replicas:
            result = results[replica.worker.id]
            if isinstance(result, Exception):
                self._exclude(replica, result)
        self._in_service()
        self._version = version

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Hold new requests back, pause engines if they need it, and undo both whatever happens inside."""
        self._pool.suspend()
        try:
            paused = self._in_service() if self._pause is not None else []
            try:
                if self._pause is not None:
                    with self._timed("pause"):
                        await self._all_or_excluded(paused, "pause", self._pause.value)
                yield
            finally:
                in_service = [replica for replica in paused if replica.worker.id not in self._excluded]
                await _to_the_end(self._all_or_excluded(in_service, "resume"))
        finally:
            self._pool.release()

    async def _all_or_excluded(self, replicas: Sequence[Replica], method: str, *args: object) -> None:
        results = await self._each(replicas, method, *args)
        for replica in replicas:
            result = results[replica.worker.id]
            if isinstance(result, Exception):
                self._exclude(replica, result)

    async def _each(self, replicas: Sequence[Replica], method: str, *args: object) -> dict[str, object]:
        """Call a method on replicas at once; return each one's result or exception by worker id."""
        calls = [replica.worker.call(method, *args, timeout_s=self._timeout_s) for replica in replicas]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
        return {replica.worker.id: result for replica, result in zip(replicas, results, strict=True)}

    def _in_service(self) -> list[Replica]:
        replicas = [r for r in self._pool.replicas if r.healthy and r.worker.id not in self._excluded]
        if not replicas:
            raise NoReplica(
                "no inference replica is left to take the weights",
                why=f"excluded during this update: {', '.join(self._excluded) or 'none'}",
                fix="read the workers' logs, then resume from the last checkpoint",
            )
        return replicas

    def _exclude(self, replica: Replica, error: Exception) -> None:
        if replica.worker.id not in self._excluded:
            self._excluded.append(replica.worker.id)
            self._pool.exclude(replica.worker.id, error)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = self._clock.now()
        try:
            yield
        finally:
            self._phases[phase] = self._phases.get(phase, 0.0) + self._clock.now() - started


def _check(sent: Receipt, result: object, replica: str) -> None:
    """Raise what is wrong with one replica's answer, naming the replica."""
    if isinstance(result, WeightSyncError):
        raise type(result)(f"{replica}: {result.what}", why=result.why, fix=result.fix) from result
    if isinstance(result, ArealError):
        why = "\n".join(line for line in (result.what, result.why) if line)
        raise WeightSyncError(f"{replica} could not take version {sent.version}", why=why, fix=result.fix) from result
    if isinstance(result, Exception):
        raise WeightSyncError(f"{replica} could not take version {sent.version}", why=repr(result)) from result
    if not isinstance(result, Receipt):
        raise WeightSyncError(f"{replica} gave no receipt", why=f"it returned {result!r:.200}")
    compare(sent, result, replica)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not be left half done; a cancellation is raised after it. Any: asyncio's own."""
    task = asyncio.ensure_future(work)
    interrupted = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            interrupted = True
    if interrupted and (task.cancelled() or task.exception() is None):
        raise asyncio.CancelledError
    return task.result()
