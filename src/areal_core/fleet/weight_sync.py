"""One weight update of the whole fleet: all of it or nothing of it (law 7).

    open -> send (every trainer rank) -> receive (every replica) -> compare receipts -> commit -> release

A transport that stores nothing has sender and receivers at work at once (`streaming`).

Knows: the order of phases, what may fail in each, and who is left out.
Does not know: how bytes travel, or what a request in flight is.

Before commit any fault leaves the fleet on the old version. A commit cannot be taken back, so
a replica that fails it is taken out of service: whoever serves, serves the new version.
A replica that waits to join takes part like the others and serves from the commit on; what goes wrong
with it costs the fleet nothing but that replica.
Generation goes on during send and receive when the engine stages weights beside the old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar

from attrs import frozen

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import NoReplica, VersionRegressed, WeightSyncError, WorkerDied, WorkerTimeout
from areal_core.contract.inference import PauseMode
from areal_core.contract.optional import SupportsStreaming
from areal_core.contract.scheduler import Worker
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.fleet.gang import as_one, parts_of
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.replica import Replica
from areal_core.fleet.streaming import Results, at_once, is_lost, most_telling, refused
from areal_core.fleet.task_groups import gather_or_cancel, to_the_end
from areal_core.fleet.turns import OwnDevices
from areal_core.weights.coverage import check, named
from areal_core.weights.tensors import combined

T = TypeVar("T")


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
    fingerprint: str = ""
    turns: Mapping[str, float] = {}
    """Seconds by which shared devices changed hands since the update before, by `fleet.turns.Stage`."""


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
        turns: who has the devices; the trainers have them until all is sent, the fleet when it receives.
    """

    def __init__(
        self,
        *,
        trainers: Sequence[Worker],
        pool: InferencePool,
        transport: WeightTransport,
        pause: PauseMode | None,
        timeout_s: float,
        staged: bool = True,
        version: int = 0,
        clock: Clock | None = None,
        turns: OwnDevices | None = None,
    ) -> None:
        self._turns = turns or OwnDevices()
        self._trainers, self._pool = tuple(trainers), pool
        self._transport, self._staged = transport, staged
        # An engine that cannot stage must not generate from half of the new weights.
        self._pause = pause if staged else (pause or PauseMode.KEEP)
        self._timeout_s = timeout_s
        self._clock: Clock = clock or SystemClock()
        self.number = self._newest = version  # as engines count: of what they serve, and were offered last
        self._owed = False
        self._fingerprints: Mapping[str, str] = {}
        self._excluded: list[str] = []
        self._phases: dict[str, float] = {}
        self._members: tuple[Replica, ...] = ()
        self._lock, self._settled = asyncio.Lock(), asyncio.Lock()

    def disconnect(self) -> None:
        """Hear that the trainers are lost: the next weights are other ones, and for everybody."""
        self._owed = True

    def go_on(self, other: WeightSync, version: int) -> WeightSync:
        """Send what the trainers of `other` have from now on, whose next `version` may be older than what is served.

        Engines take no weights but newer ones: their count goes on from the last they were offered, and is ahead of
        the policy's versions from here on. Where they were offered none, all are at version 0.
        """
        self._trainers, self._transport = other._trainers, other._transport
        self._staged, self._pause = other._staged, other._pause
        if self._newest:
            self._pool.ahead = self._newest + 1 - version
        return self

    @property
    def version(self) -> int:
        """Return the version every replica in service serves."""
        return self.number - self._pool.ahead

    async def update(self, version: int) -> WeightUpdate:
        """Bring the trainer's weights to every replica in service, and to those that wait to join, as `version`.

        Where every replica is lost and another one is on its way, the update waits for it.

        Raises:
            VersionRegressed: `version` is not newer than the one served.
            WeightSyncError: nothing changed; the fleet serves the version it served before.
            NoReplica: no replica survived the update, and none is on its way.
            ArealError: whatever a trainer rank raised; nothing changed either.
        """
        while True:
            if not any(replica.healthy for replica in self._pool.replicas):
                await self._turns.generate()  # a replica on its way starts in the fleet's turn
            await self._pool.present()
            async with self._lock:
                if version <= self.version:
                    raise VersionRegressed(
                        f"version {version} cannot be sent to the fleet", why=f"it already serves {self.version}"
                    )
                self._members = tuple(self._pool.replicas)
                try:
                    return await self._update(version + self._pool.ahead)
                except (NoReplica, WeightSyncError):
                    if any(replica.healthy for replica in self._members) or not self._pool.expecting:
                        raise

    async def catch_up(self) -> WeightUpdate | None:
        """Bring the version served to replicas that wait to join, without waiting for the next one.

        For a fleet none of which serves: the trainer sends once more what it sent last. Version 0 is what every
        engine starts with and is not sent. Returns None if nothing had to be sent, or the next update sends it.

        Raises:
            NoReplica: none of them took it.
            WeightSyncError: the trainer's weights are no longer those of the version served.
        """
        async with self._lock:
            if not self.number:
                for replica in self._joining():
                    self._pool.admit(replica.worker.id)
                return None
        async with self._settled, self._lock:
            served = self._turns.shared and self._pool.num_serving  # whoever serves would sleep, and get no weights
            self._members = () if served or self._owed else self._joining()
            return await self._update(self.number) if self._members else None

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Enclose a train step and its update: from its first change on, the trainer's weights are of no version."""
        async with self._settled:
            yield

    @asynccontextmanager
    async def between_updates(self) -> AsyncIterator[None]:
        """Enclose what must not happen during an update, such as the end of a replica that takes part in it."""
        async with self._lock:
            yield

    def _joining(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self._pool.replicas if replica.healthy and replica.joining)

    async def _update(self, version: int) -> WeightUpdate:
        self._excluded, self._phases, self._newest = [], {}, max(version, self._newest)
        started = self._clock.now()
        sent = await self._transfer(version)
        unchanged = sum(self._fingerprints.get(name) == digits for name, digits in sent.fingerprints.items())
        self._fingerprints = sent.fingerprints
        return WeightUpdate(
            version=version - self._pool.ahead,
            num_tensors=len(sent.fingerprints),
            num_bytes=sent.num_bytes,
            unchanged=unchanged,
            seconds=self._clock.now() - started,
            phases=dict(self._phases),
            excluded=tuple(self._excluded),
            fingerprint=combined(sent.fingerprints),
            turns=self._turns.taken_s(),
        )

    async def _transfer(self, version: int) -> Receipt:
        if isinstance(self._transport, SupportsStreaming):
            return await self._then_commit(version, partial(self._until_streamed, self._transport, version))
        await self._turns.train()
        opening = asyncio.ensure_future(asyncio.to_thread(self._transport.open, version))
        try:
            offer = await asyncio.shield(opening)
            with self._timed("send"):
                sent = await self._send(offer)
            await self._turns.generate()
            await self._then_commit(version, partial(self._receive, offer, sent))
            return sent
        finally:
            await to_the_end(self._release(opening))

    async def _then_commit(self, version: int, arrive: Callable[[], Awaitable[T]]) -> T:
        """Commit what arrives; the fleet is paused for the commit, and before if its engines do not stage."""
        if self._staged:
            arrived = await arrive()
            await to_the_end(self._flip(version))
            return arrived
        async with self._paused():
            arrived = await arrive()
            await to_the_end(self._commit(version))
            return arrived

    async def _until_streamed(self, transport: SupportsStreaming, version: int) -> Receipt:
        """Stream to every replica in service; to those that are left, when the loss of some broke the stream."""
        while True:
            replicas = self._in_service()
            parts = {replica.worker.id: parts_of(replica.worker) for replica in replicas}
            receivers = [part for several in parts.values() for part in several]
            opening = asyncio.ensure_future(asyncio.to_thread(self._transport.open, version))
            try:
                offer = await asyncio.shield(opening)
                offers = await asyncio.to_thread(transport.expect, offer, [part.id for part in receivers])
                with self._timed("stream"):
                    sending, receiving = await at_once(
                        [worker.call(*call, timeout_s=self._timeout_s) for worker, call in self._senders(offer)],
                        [
                            part.call("receive_weights", own, version, timeout_s=self._timeout_s)
                            for part, own in zip(receivers, offers, strict=True)
                        ],
                        partial(asyncio.to_thread, self._transport.release, offer),
                    )
                got = iter(receiving)
                results = {name: as_one(several, [next(got) for _ in several]) for name, several in parts.items()}
                if not any(isinstance(result, BaseException) for result in sending):
                    sent = self._receipt(sending[0], offer)
                    self._judge(replicas, results, sent)
                    return sent
                self._leave_out_the_lost(replicas, results, sending, version)
            except BaseException:
                # Receivers that still wait for somebody are woken by the release; only then can they abort.
                await to_the_end(self._release(opening))
                await to_the_end(self._abort(replicas))
                raise
            finally:
                await to_the_end(self._release(opening))
            await to_the_end(self._abort(self._in_service()))

    def _leave_out_the_lost(
        self, replicas: Sequence[Replica], results: Mapping[str, object], sending: Results, version: int
    ) -> None:
        """Exclude the replicas whose loss broke the stream, or a joining one's refusal, or raise what broke it."""
        failed = {r.worker.id: e for r in replicas if isinstance(e := results[r.worker.id], Exception)}
        unable = [r for r in replicas if is_lost(results[r.worker.id]) or (r.joining and refused(results[r.worker.id]))]
        if len(unable) in (0, len(replicas)) or any(is_lost(result) for result in sending):
            culprit = most_telling([*(e for e in sending if isinstance(e, BaseException)), *failed.values()])
            for worker_id, error in failed.items():
                if error is culprit:
                    raise named(error, worker_id, version) from error
            raise culprit
        for replica in unable:
            self._exclude(replica, failed[replica.worker.id])

    async def _release(self, opening: asyncio.Future[Offer]) -> None:
        """Release what was opened, also when nobody waited for the opening to end."""
        await asyncio.wait({opening})
        if opening.exception() is None:
            await asyncio.to_thread(self._transport.release, opening.result())

    async def _send(self, offer: Offer) -> Receipt:
        """Call every rank; the first failure ends the wait, for the others wait for the one that failed."""
        receipts = await gather_or_cancel(
            [worker.call(*call, timeout_s=self._timeout_s) for worker, call in self._senders(offer)]
        )
        return self._receipt(receipts[0], offer)

    def _senders(self, offer: Offer) -> list[tuple[Worker, tuple[str, Offer | None, int]]]:
        """Return each rank and the call to make to it; rank 0 holds the sending end."""
        return [
            (worker, ("send_weights", offer if rank == 0 else None, offer.version))
            for rank, worker in enumerate(self._trainers)
        ]

    def _receipt(self, receipt: object, offer: Offer) -> Receipt:
        if not isinstance(receipt, Receipt) or receipt.version != offer.version:
            raise WeightSyncError(
                f"{self._trainers[0].id} gave no receipt for version {offer.version}",
                why=f"it returned {receipt!r:.200}",
            )
        if offer.version == self.number and receipt.fingerprints != self._fingerprints:
            raise WeightSyncError(
                f"{self._trainers[0].id} sent other weights as version {offer.version} than before",
                why="the fleet would serve two policies under one version",
            )
        return receipt

    async def _receive(self, offer: Offer, sent: Receipt) -> None:
        """Hand the offer to every replica; on return every one left in service provably holds the version."""
        replicas = self._in_service()
        try:
            with self._timed("receive"):
                results = await self._each(replicas, "receive_weights", offer, offer.version)
            self._judge(replicas, results, sent)
        except BaseException:
            await to_the_end(self._abort(replicas))
            raise

    def _judge(self, replicas: Sequence[Replica], results: Mapping[str, object], sent: Receipt) -> None:
        """Leave out who is lost; raise what is wrong with anybody else's receipt."""
        alive = [r for r in replicas if r.healthy and not is_lost(results[r.worker.id])]
        for replica in replicas:
            result = results[replica.worker.id]
            if replica.joining:
                self._check_joining(sent, result, replica)
            elif replica in alive or not alive:
                check(sent, result, replica.worker.id)
            elif isinstance(result, Exception):
                self._exclude(replica, result)

    def _check_joining(self, sent: Receipt, result: object, replica: Replica) -> None:
        """Take a replica out that could not take what the fleet will serve, before it serves anything."""
        try:
            check(sent, result, replica.worker.id)
        except WeightSyncError as error:
            self._exclude(replica, result if isinstance(result, WorkerDied | WorkerTimeout) else error)

    async def _abort(self, replicas: Sequence[Replica]) -> None:
        """Have replicas drop what they hold; one that cannot is in a state nobody knows, and goes."""
        await self._all_or_excluded(replicas, "abort_weights")

    async def _flip(self, version: int) -> None:
        async with self._paused():
            await self._commit(version)

    async def _commit(self, version: int) -> None:
        with self._timed("commit"):
            await self._all_or_excluded(self._in_service(), "commit_weights", version)
        served = self._in_service()
        self.number, self._owed = version, False
        for replica in served:
            self._pool.admit(replica.worker.id)

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
                await to_the_end(self._all_or_excluded(in_service, "resume"))
        finally:
            self._pool.release()

    async def _all_or_excluded(self, replicas: Sequence[Replica], method: str, *args: object) -> None:
        """Call a method on replicas at once; one that fails it is taken out of service."""
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
        replicas = [r for r in self._members if r.healthy and r.worker.id not in self._excluded]
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
