"""Sessions of outside clients, and the episodes of a run that some of them become.

An episode waits for a client. A session that begins while one waits is that episode, made within the staleness gate as
any other; one that begins while none waits is served by the same policy and never trained on.

Knows: who is open, who is trained on, and when a session is over.
Does not know: HTTP (`app`), or how an episode is made of a session (`workflow`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from attrs import define, evolve, field, frozen

from areal_agentic.endpoint import SessionLimits
from areal_agents.serve.config import OnlineConfig
from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.workflow import RewardResult, Session

if TYPE_CHECKING:
    from areal_agents.endpoint import Endpoint
    from areal_agents.episode import AgentSession


class SpareSession(Session, Protocol):
    """A session of the fleet that is no episode's."""

    async def close(self) -> None:
        """Cancel what it waits for."""


class Full(Exception):
    """As many sessions are open as may be."""


class NobodyWaits(Exception):
    """No session may begin now that is trained on."""


class NotServing(Exception):
    """The policy is not served yet, or not any more."""


@frozen(kw_only=True)
class Counts:
    """Sessions so far, by how they ended."""

    trained: int = 0
    """Handed to the run with a reward."""
    untrained: int = 0
    """Served while no episode waited."""
    unrewarded: int = 0
    """Might have been trained on, and ended without a reward or without an answer."""
    failed: int = 0
    """Might have been trained on, and the fleet failed during it."""


@define(eq=False)
class ClientSession:
    """One session, open from its beginning until `end`, or until it was quiet, or open, for too long."""

    opened: AgentSession
    trains: bool
    """An episode waited for it: it is trained on once it has a reward."""
    tells: bool
    """Its own key may tell the reward."""
    idle_timeout_s: float
    ends_at: float
    """When it is over at the latest, by `clock`."""
    clock: Clock
    id: str = field(factory=lambda: uuid4().hex)
    reward: RewardResult | None = None
    ended: bool = False
    _num_requests: int = 0
    _moved: asyncio.Event = field(factory=asyncio.Event)

    @property
    def teaches(self) -> bool:
        """Whether there is something to train on, and a reward for it."""
        opened = self.opened
        return self.trains and self.reward is not None and opened.last is not None and opened.failure is None

    @property
    def versions(self) -> tuple[int, int] | None:
        """Return the oldest and the newest version of the policy that answered; None if nothing was."""
        answers = self.opened.recorder.answers
        seen = [span.version for each in answers for span in each.generation.version_spans]
        return (min(seen), max(seen)) if seen else None

    @property
    def outcome(self) -> str:
        """Return which of the `Counts` it is, once it is over."""
        if not self.trains:
            return "untrained"
        if self.opened.failure is not None:
            return "failed"
        return "trained" if self.teaches else "unrewarded"

    @contextmanager
    def request(self) -> Iterator[None]:
        """Be busy for as long as the block runs."""
        self._num_requests += 1
        self._moved.set()
        try:
            yield
        finally:
            self._num_requests -= 1
            self._moved.set()

    def end(self, reward: RewardResult | None) -> None:
        """End it; the first end counts."""
        if not self.ended:
            self.ended, self.reward = True, reward
            self._moved.set()

    async def over(self) -> None:
        """Wait until it has ended, by whatever."""
        while not self.ended:
            self._moved.clear()
            left = self.ends_at - self.clock.now()
            quiet = left if self._num_requests else min(left, self.idle_timeout_s)
            try:
                await self.clock.wait_for(self._moved.wait(), max(0.0, quiet))
            except TimeoutError:
                self.end(None)


@frozen(eq=False)
class _Place:
    """An episode that waits."""

    engine: Session
    taken: asyncio.Future[ClientSession]


class Reception:
    """Every session of a run. Belongs to one event loop."""

    def __init__(self, config: OnlineConfig, endpoint: Endpoint, *, clock: Clock | None = None) -> None:
        """Take nobody in yet: `spare` is to be set first."""
        self.spare: Callable[[], SpareSession] | None = None
        """Makes a session of the fleet for who is not trained on; None while the run is not ready, or over."""
        self.version: Callable[[], int] = lambda: 0
        """Tells which version of the policy is served."""
        self.counts = Counts()
        self._config, self._endpoint, self._clock = config, endpoint, clock or SystemClock()
        self._limits = SessionLimits(max_requests=config.max_requests, concurrency=config.concurrency)
        self._waiting: deque[_Place] = deque()
        self._sessions: dict[str, ClientSession] = {}
        self._closing: dict[str, ExitStack] = {}
        self._untrained: set[asyncio.Task[None]] = set()
        self._told = Counts()

    @property
    def serves(self) -> bool:
        """Return whether sessions may begin."""
        return self.spare is not None

    @property
    def num_waiting(self) -> int:
        """Return how many episodes wait for a client."""
        return len(self._waiting)

    @property
    def num_open(self) -> int:
        """Return how many sessions are open."""
        return len(self._sessions)

    def of_key(self, key: str) -> ClientSession | None:
        """Return the open session of a key."""
        return self._sessions.get(key)

    def of_id(self, name: str) -> ClientSession | None:
        """Return the open session of an id."""
        return next((session for session in self._sessions.values() if session.id == name), None)

    def begin(self, *, trains: bool | None = None, tells: bool = True) -> ClientSession:
        """Begin a session: that of the episode that waits longest, or one that is not trained on.

        Args:
            trains: True for one that is trained on or none at all, False for one that is not, whoever waits.
            tells: whether its own key may tell the reward.

        Raises:
            NotServing, Full, NobodyWaits: none may begin now.
        """
        if self.spare is None:
            raise NotServing
        if len(self._sessions) >= self._config.max_sessions:
            raise Full
        while trains is not False and self._waiting:
            place = self._waiting.popleft()
            if not place.taken.done():  # of an episode that is being cancelled
                session = self._open(place.engine, trains=True, tells=tells)
                place.taken.set_result(session)
                return session
        if trains:
            raise NobodyWaits
        engine = self.spare()
        session = self._open(engine, trains=False, tells=tells)
        task = asyncio.create_task(self._accompany(session, engine), name=f"untrained session {session.id}")
        self._untrained.add(task)
        task.add_done_callback(self._untrained.discard)
        return session

    async def visit(self, engine: Session) -> ClientSession:
        """Wait, as an episode, for a client and for the end of its session; cancelled, its key opens nothing more."""
        place = _Place(engine, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            session = await place.taken
            await session.over()
        finally:
            with suppress(ValueError):
                self._waiting.remove(place)
            if place.taken.done() and not place.taken.cancelled():
                self._forget(place.taken.result())
        self._count(session)
        return session

    def metrics(self) -> Mapping[str, float]:
        """Return what happened beside the sessions that are trained on since the last time this was asked."""
        before, self._told = self._told, self.counts
        return {
            "online/untrained": float(self.counts.untrained - before.untrained),
            "online/unrewarded": float(self.counts.unrewarded - before.unrewarded),
        }

    async def close(self) -> None:
        """Take nobody in any more and end who is not trained on; the run ends its episodes. Idempotent."""
        self.spare = None
        for task in self._untrained:
            task.cancel()
        await asyncio.gather(*self._untrained, return_exceptions=True)

    async def _accompany(self, session: ClientSession, engine: SpareSession) -> None:
        """Stay with a session that is not trained on until it is over."""
        try:
            await session.over()
        finally:
            self._count(session)
            self._forget(session)
            await engine.close()

    def _open(self, engine: Session, *, trains: bool, tells: bool) -> ClientSession:
        with ExitStack() as stack:
            opened = stack.enter_context(self._endpoint.open(engine, self._limits))
            session = ClientSession(
                opened=opened,
                trains=trains,
                tells=tells,
                idle_timeout_s=self._config.idle_timeout_s,
                ends_at=self._clock.now() + self._config.session_timeout_s,
                clock=self._clock,
            )
            self._sessions[opened.key], self._closing[opened.key] = session, stack.pop_all()
        return session

    def _count(self, session: ClientSession) -> None:
        word = session.outcome
        self.counts = evolve(self.counts, **{word: getattr(self.counts, word) + 1})

    def _forget(self, session: ClientSession) -> None:
        """Let its key open nothing more."""
        if (stack := self._closing.pop(session.opened.key, None)) is not None:
            del self._sessions[session.opened.key]
            stack.close()
