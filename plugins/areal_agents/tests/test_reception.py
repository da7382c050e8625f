"""Sessions of clients and the episodes they become: each session once, each episode one session, no key afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agents.endpoint import Endpoint
from areal_agents.serve.config import OnlineConfig
from areal_agents.serve.reception import ClientSession, Reception
from areal_agents.serve.workflow import OnlineWorkflow
from areal_core.contract.data import Episode
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.workflow import RewardResult
from areal_core.testing.clock import StepClock

from .speaking import Speaking

GOOD = RewardResult(value=1.0, components={"form": 0.5})


class Spare(Speaking):
    """A session of the fleet that is no episode's."""

    closed = False

    async def close(self) -> None:
        self.closed = True


class Hall:
    """A reception with episodes that wait, made by the workflow itself."""

    def __init__(self, **options: Any) -> None:
        self.clock = StepClock()
        self.endpoint = Endpoint(OnlineConfig())
        transport = httpx2.ASGITransport(self.endpoint.app())
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://online")
        self.reception = Reception(OnlineConfig(**options), self.endpoint, clock=self.clock)
        self.spares: list[Spare] = []
        self.reception.spare = self._spare
        self.workflow = OnlineWorkflow()
        self.workflow.reception = self.reception
        self.episodes: list[asyncio.Task[Episode | None]] = []

    def _spare(self) -> Spare:
        self.spares.append(Spare())
        return self.spares[-1]

    async def wait(self, engine: Speaking | None = None) -> asyncio.Task[Episode | None]:
        """Have one more episode wait."""
        self.episodes.append(asyncio.create_task(self.workflow.arun_episode(engine or Speaking(), {})))
        await self.clock.settle()
        return self.episodes[-1]

    async def ask(self, session: ClientSession, status: int = 200) -> None:
        """Have a session answered once, or told of a failure."""
        body, key = {"model": "policy", "prompt": "ab>"}, {"x-api-key": session.opened.key}
        with session.request():
            answer = await self.http.post("/v1/completions", json=body, headers=key)
        assert answer.status_code == status

    async def end(self, session: ClientSession, reward: RewardResult | None) -> None:
        session.end(reward)
        await self.clock.settle()

    async def close(self) -> None:
        await self.reception.close()
        await self.http.aclose()
        for episode in self.episodes:
            episode.cancel()
        await asyncio.gather(*self.episodes, return_exceptions=True)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_session_that_finds_an_episode_waiting_is_that_episode() -> None:
    """What it asked is trained on with the reward that was told, and its key opens nothing any more."""

    async def one() -> None:
        hall = Hall()
        episode = await hall.wait()
        session = hall.reception.begin()
        await hall.ask(session)
        assert session.trains and not episode.done()
        await hall.end(session, GOOD)

        made = episode.result()
        assert made is not None and [each.reward for each in made.trajectories] == [1.0]
        assert made.metrics["form"] == 0.5 and made.metrics["online/untrained"] == 0.0
        assert hall.reception.of_key(session.opened.key) is None and hall.reception.num_open == 0
        assert hall.reception.counts.trained == 1 and hall.spares == []

    run(one())


def test_a_session_that_finds_none_is_served_and_never_trained_on() -> None:
    """Also if an episode comes to wait while it goes on; the next trained one tells of it."""

    async def one() -> None:
        hall = Hall()
        late = hall.reception.begin()
        await hall.ask(late)
        episode = await hall.wait()
        await hall.end(late, GOOD)
        assert not late.trains and not late.teaches and not episode.done()
        assert [spare.closed for spare in hall.spares] == [True] and len(hall.spares[0].asked) == 1

        session = hall.reception.begin()
        await hall.ask(session)
        await hall.end(session, GOOD)
        made = episode.result()
        assert made is not None and made.metrics["online/untrained"] == 1.0

    run(one())


def test_a_session_without_reward_or_without_answer_rejects_its_episode() -> None:
    """On purpose, never as a reward of zero."""

    async def one() -> None:
        hall = Hall()
        for asks, reward in ((True, None), (False, GOOD)):
            episode = await hall.wait()
            session = hall.reception.begin()
            if asks:
                await hall.ask(session)
            await hall.end(session, reward)
            assert episode.result() is None
        assert (hall.reception.counts.trained, hall.reception.counts.unrewarded) == (0, 2)

    run(one())


def test_a_quiet_session_is_over_and_a_busy_one_is_not() -> None:
    """The time without a request counts, not the time a request takes."""

    async def one() -> None:
        hall = Hall(idle_timeout_s=10.0)
        episode = await hall.wait()
        session = hall.reception.begin()
        with session.request():
            await hall.clock.advance(100.0)
            assert not session.ended
        await hall.clock.advance(9.0)
        with session.request():
            await hall.clock.settle()
        await hall.clock.advance(9.0)
        assert not session.ended and not episode.done()
        await hall.clock.advance(1.0)
        assert session.ended and episode.result() is None

    run(one())


def test_a_session_is_over_after_its_time_however_busy() -> None:
    """Else a client could hold up the batch that waits for it."""

    async def one() -> None:
        hall = Hall(idle_timeout_s=10.0, session_timeout_s=15.0)
        episode = await hall.wait()
        session = hall.reception.begin()
        await hall.ask(session)
        with session.request():
            await hall.clock.advance(14.0)
            assert not session.ended
            await hall.clock.advance(1.0)
        assert session.ended and not session.teaches and episode.result() is None

    run(one())


def test_a_session_during_which_the_fleet_failed_fails_its_episode() -> None:
    """Whatever its client made of the error, and whatever reward it tells."""

    async def one() -> None:
        hall = Hall()
        episode = await hall.wait(Speaking(fails={1: GenerationFailed("a replica is gone")}))
        session = hall.reception.begin()
        await hall.ask(session)
        await hall.ask(session, status=503)
        await hall.ask(session)
        await hall.end(session, GOOD)
        assert not session.teaches and isinstance(episode.exception(), GenerationFailed)
        assert (hall.reception.counts.failed, hall.reception.counts.trained) == (1, 0)

    run(one())


def test_an_episode_that_is_cancelled_takes_its_session_with_it() -> None:
    """And one that only waits leaves its place to nobody."""

    async def one() -> None:
        hall = Hall()
        served, waiting = await hall.wait(), await hall.wait()
        session = hall.reception.begin()
        for episode in (served, waiting):
            episode.cancel()
        assert not hall.reception.begin().trains, "the other is being cancelled"
        await hall.clock.settle()
        assert hall.reception.of_key(session.opened.key) is None and hall.reception.num_waiting == 0
        await hall.close()

    run(one())


STEPS = st.lists(st.tuples(st.sampled_from(["wait", "begin", "ask", "reward", "end", "cancel"]), st.integers(0, 7)))


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_whatever_comes_each_session_is_trained_on_once_or_never(steps: list[tuple[str, int]]) -> None:
    """As many episodes end with a session as sessions were told that they train; what is over can be asked nothing."""

    async def one() -> None:
        hall = Hall()
        sessions: list[ClientSession] = []
        for step, number in steps:
            chosen = sessions[number % len(sessions)] if sessions else None
            if step == "wait":
                await hall.wait()
            elif step == "begin":
                before = hall.reception.num_waiting
                sessions.append(hall.reception.begin())
                assert sessions[-1].trains == (before > 0)
            elif step == "cancel" and hall.episodes:
                hall.episodes[number % len(hall.episodes)].cancel()
            elif step in ("reward", "end") and chosen is not None:
                await hall.end(chosen, GOOD if step == "reward" else None)
            elif step == "ask" and chosen is not None and hall.reception.of_key(chosen.opened.key):
                await hall.ask(chosen)
            await hall.clock.settle()
        made = [each.result() for each in hall.episodes if each.done() and not each.cancelled()]
        counts = hall.reception.counts
        assert sum(episode is not None for episode in made) == counts.trained
        assert sum(episode is None for episode in made) == counts.unrewarded
        assert len({session.opened.key for session in sessions}) == len(sessions)
        for session in sessions:
            assert not session.ended or hall.reception.of_key(session.opened.key) is None
        await hall.close()
        assert hall.reception.num_open == 0 and all(spare.closed for spare in hall.spares)

    run(one())
