"""The inference fleet as one engine: routing, failover, and requests that survive interruptions.

Knows: load and health of the replicas, who was served where, how requests move from one that leaves.
Does not know: who is in the fleet (`roster`), episodes, policy versions (engines stamp them), or how weights travel.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import ArealError, GenerationFailed, WorkerDied
from areal_core.contract.inference import EngineStatus, Generation, GenerationRequest, PauseMode
from areal_core.contract.optional import ToolParse
from areal_core.contract.scheduler import Worker
from areal_core.fleet.breaker import Breaker
from areal_core.fleet.continuation import Continuation
from areal_core.fleet.replica import FAILOVER, Replica, ReplicaStage, checked_generation
from areal_core.fleet.roster import Roster

Failures = tuple[tuple[Replica, Exception], ...]
"""Replicas that failed a call, in the order they were asked."""
NOBODY: Failures = ()
MAX_HOMES = 65536
"""Sessions and groups whose replica is remembered."""


@frozen(kw_only=True)
class PoolPolicy:
    """How the pool routes and how patient it is.

    A session stays on its replica while that has at most `affinity_slack` requests more in
    flight than the least loaded one.
    """

    request_timeout_s: float = 1800.0
    status_timeout_s: float = 5.0
    affinity_slack: int = 8
    failure_threshold: int = 3
    cooldown_s: float = 10.0
    drain_s: float = 30.0
    """How long a replica that leaves may take for its requests before they are moved to the others."""


class InferencePool(Roster):
    """Serve generation requests from several replicas of one policy; replicas come and go."""

    def __init__(
        self, workers: Sequence[Worker], *, policy: PoolPolicy | None = None, clock: Clock | None = None
    ) -> None:
        """Take the workers of one role; they are not started yet."""
        self._policy = policy = policy or PoolPolicy()
        clock = clock or SystemClock()
        super().__init__(
            workers,
            breaker=lambda: Breaker(threshold=policy.failure_threshold, cooldown_s=policy.cooldown_s, clock=clock),
            patience_s=policy.request_timeout_s,
            clock=clock,
        )
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        self._open = asyncio.Event()
        self._open.set()
        self.in_flight = 0
        """Requests that are not answered yet, those held back among them."""
        self.ahead = 0  # by how much versions as engines count are ahead of the policy's; see `WeightSync.go_on`

    async def drain(self, worker_id: str) -> None:
        """Send a replica nothing more and return once it has no request in flight, or will not end them.

        Requests that take longer than `drain_s` are interrupted and go on elsewhere.
        """
        replica = self.find(worker_id)
        if replica is None or not replica.healthy:
            return
        replica.stage = ReplicaStage.LEAVING
        if await self._is_idle(replica, self._policy.drain_s):
            return
        try:
            await replica.worker.call("pause", PauseMode.ABORT.value, timeout_s=self._policy.status_timeout_s)
        except ArealError:
            return  # it cannot interrupt, or does not answer: its requests are made again elsewhere when it ends
        await self._is_idle(replica, self._policy.status_timeout_s)

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        """Generate, through interruptions and over failing replicas.

        Args:
            affinity: names whose last replica is preferred, the first known one counts:
                the session, then its group.

        Raises:
            NoReplica: every replica is out of service; names each with its last error.
            GenerationFailed, WorkerTimeout: every usable replica failed this request.
            PromptTooLong, and whatever else an engine raises for the request itself.
        """
        self.in_flight += 1
        try:
            whole: Continuation | None = None  # made when the first part is there: many wait for theirs
            failed, sent = NOBODY, request
            while True:
                replica = await self._next(affinity, failed)
                ticket = replica.begin()
                try:
                    answer = await replica.send(sent, self._policy.request_timeout_s)
                    part = self._counted(checked_generation(answer, replica.id))
                except BaseException as error:
                    if (failure := replica.ended(ticket, error)) is None:
                        raise
                    failed, part = (*failed, (replica, failure)), None
                else:
                    replica.ended(ticket)
                    failed = NOBODY
                whole = whole or Continuation(request, num_calls=1)
                if part is not None and (generation := whole.add(part)) is not None:
                    return generation
                sent = whole.next_request()
        finally:
            self.in_flight -= 1

    async def parse_tool_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]], *, affinity: Sequence[str] = ()
    ) -> ToolParse:
        """Have one replica read an output for tool calls; `affinity` as for `generate`. Any: JSON.

        Raises:
            NoReplica, WorkerTimeout: as for `generate`.
            CapabilityError: the engine reads none.
        """
        failed = NOBODY
        while True:
            replica = await self._next(affinity, failed)
            try:
                answer = await replica.worker.call(
                    *("parse_tool_calls", text, [dict(tool) for tool in tools]), timeout_s=self._policy.status_timeout_s
                )
            except FAILOVER as error:
                failed = (*failed, (replica, error))
            else:
                assert isinstance(answer, ToolParse)
                return answer

    async def each(self, method: str, *args: Any, timeout_s: float) -> dict[str, Any]:
        """Call a method of every replica in service at once; returns result or exception by worker id.

        Any: arguments and results are the engine method's own. A replica that died is taken out of service.

        Raises:
            NoReplica: none is left to call.
        """
        replicas = [replica for replica in self.replicas if replica.healthy]
        if not replicas:
            raise self.no_replica()
        answers = await asyncio.gather(
            *(replica.worker.call(method, *args, timeout_s=timeout_s) for replica in replicas), return_exceptions=True
        )
        for replica, answer in zip(replicas, answers, strict=True):
            if isinstance(answer, WorkerDied):
                self.exclude(replica.id, answer)
        return {replica.id: answer for replica, answer in zip(replicas, answers, strict=True)}

    def suspend(self) -> None:
        """Hold requests back that have not begun, and interrupted ones, until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let requests go again. Idempotent."""
        self._open.set()

    async def status(self) -> dict[str, EngineStatus | BaseException]:
        """Poll every replica; one out of service is reported by the error that took it out."""
        answers: dict[str, EngineStatus | BaseException] = {
            replica.id: replica.error for replica in self.replicas if not replica.healthy and replica.error is not None
        }
        if any(replica.healthy for replica in self.replicas):
            answers.update(await self.each("status", timeout_s=self._policy.status_timeout_s))
        return answers

    def _counted(self, part: Generation) -> Generation:
        """Return what an engine gave with versions as the policy counts them."""
        if not self.ahead:
            return part
        return evolve(part, version_spans=[evolve(s, version=s.version - self.ahead) for s in part.version_spans])

    async def _next(self, affinity: Sequence[str], failed: Failures) -> Replica:
        """Return whom to ask, once there is somebody, or raise why the call cannot be made."""
        while True:
            if not self._open.is_set():
                await self._until_open()
            replica = self._choose(affinity, [replica for replica, _ in failed])
            if replica is not None:
                self._remember(affinity, replica)
                return replica
            if self._source is not None:
                self._source.look()  # the last one may be silent: its calls fail before it is given up
            if not self.num_serving and self.expecting:
                await self.until(lambda: bool(self.num_serving))
                continue
            last = failed[-1][1] if failed else None
            if last is None or not any(other.usable for other in self.replicas):
                raise self.no_replica() from last
            raise last

    def _choose(self, affinity: Sequence[str], tried: Sequence[Replica]) -> Replica | None:
        least = self._least_loaded.choose(tried)
        home = next((self._homes[name] for name in affinity if name in self._homes), None)
        if least is None or home is None or not home.usable or home in tried:
            return least
        return home if home.in_flight <= least.in_flight + self._policy.affinity_slack else least

    def home(self, affinity: Sequence[str]) -> str:
        """Return the id of the replica that served these names last, empty if none did."""
        return next((self._homes[name].id for name in affinity if name in self._homes), "")

    def _remember(self, affinity: Sequence[str], replica: Replica) -> None:
        for name in affinity:
            self._homes[name] = replica
            self._homes.move_to_end(name)
        while len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)

    async def _is_idle(self, replica: Replica, within_s: float) -> bool:
        try:
            await self.clock.wait_for(replica.idle.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def _until_open(self) -> None:
        try:
            await self.clock.wait_for(self._open.wait(), self._policy.request_timeout_s)
        except TimeoutError as exc:
            raise GenerationFailed(
                f"a request was held back for {self._policy.request_timeout_s:g} s",
                why="a weight update suspended the pool and never released it",
            ) from exc
