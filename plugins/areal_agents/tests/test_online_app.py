"""What clients of `areal serve` are answered: who may begin a session, who may reward it, and what else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agents.serve.app import OnlineApp

from .test_reception import Hall

ADMIN = "areal-admin-key"


class Visits:
    """The application over real sessions and the real endpoint."""

    def __init__(self, **options: Any) -> None:
        self.hall = Hall(**options)
        self.http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(OnlineApp(self.hall.reception, self.hall.endpoint.app(), ADMIN).asgi),
            base_url="http://online/v1",
        )

    async def post(self, path: str, key: str, body: Any = None) -> httpx2.Response:
        return await self.http.post(path, headers={"authorization": f"Bearer {key}"}, json=body)

    async def begin(self) -> dict[str, Any]:
        answer = await self.post("/sessions", ADMIN)
        assert answer.status_code == 201
        found: dict[str, Any] = answer.json()
        return found

    async def ask(self, key: str) -> int:
        body = {"model": "policy", "prompt": "ab>"}
        return (await self.http.post("/completions", headers={"x-api-key": key}, json=body)).status_code


def visiting(work: Callable[[Visits], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        visits = Visits(**options)
        try:
            await work(visits)
        finally:
            await visits.hall.close()
            await visits.http.aclose()

    asyncio.run(run())


def test_a_session_is_begun_asked_and_rewarded() -> None:
    """By its reward it is over: told again, or asked, its key opens nothing."""

    async def work(visits: Visits) -> None:
        episode = await visits.hall.wait()
        session = await visits.begin()
        assert session["trains"] and await visits.ask(session["api_key"]) == 200
        told = await visits.post("/reward", session["api_key"], {"reward": 0.5, "form": 1})
        assert told.json() == {"id": session["id"], "reward": 0.5, "trains": True, "versions": [3, 3]}

        made = await episode
        assert made is not None and made.trajectories[0].reward == 0.5 and made.metrics["form"] == 1.0
        assert await visits.ask(session["api_key"]) == 401
        again = await visits.post("/reward", session["api_key"], {"reward": 9.0})
        assert again.status_code == 401 and again.json()["error"]["type"] == "authentication_error"

    visiting(work)


def test_whoever_began_a_session_may_end_it() -> None:
    """With a reward, or without: then it is not trained on; an end of what is over is told."""

    async def work(visits: Visits) -> None:
        for body, taught in (({"reward": 1.0}, True), (None, False)):
            episode = await visits.hall.wait()
            session = await visits.begin()
            await visits.ask(session["api_key"])
            path = f"/sessions/{session['id']}/end"
            assert (await visits.post(path, ADMIN, body)).json()["trains"] == taught
            assert (await episode is not None) == taught
            assert (await visits.post(path, ADMIN)).status_code == 404

    visiting(work)


def test_health_and_status_tell_the_version_and_who_came() -> None:
    """Health to whoever asks, also before the policy is served; counts to who has the admin key."""

    async def work(visits: Visits) -> None:
        reception, admin = visits.hall.reception, {"authorization": f"Bearer {ADMIN}"}
        spare, reception.spare = reception.spare, None
        starting = await visits.http.get("http://online/health")
        refused = await visits.post("/sessions", ADMIN)
        assert (starting.status_code, starting.json()) == (503, {"status": "not serving"})
        assert refused.status_code == 503 and refused.headers["retry-after"]

        reception.spare, reception.version = spare, lambda: 12
        session = await visits.begin()
        ready = await visits.http.get("http://online/health")
        assert (ready.status_code, ready.json()) == (200, {"status": "serving", "version": 12})
        told = (await visits.http.get("/status", headers=admin)).json()
        counts = {"trained": 0, "untrained": 0, "unrewarded": 0, "failed": 0}
        assert told == {"status": "serving", "version": 12, "open": 1, "episodes_waiting": 0, **counts}
        assert session["version"] == 12

    visiting(work)


def test_a_session_may_be_begun_that_is_not_trained_on() -> None:
    """Whoever waits; its reward is taken and changes nothing."""

    async def work(visits: Visits) -> None:
        episode = await visits.hall.wait()
        session = (await visits.post("/sessions", ADMIN, {"trains": False})).json()
        await visits.ask(session["api_key"])
        told = (await visits.post("/reward", session["api_key"], {"reward": 1.0})).json()
        assert (session["trains"], told["trains"], told["reward"]) == (False, False, 1.0)
        assert not episode.done() and visits.hall.reception.num_waiting == 1

    visiting(work)


def test_a_session_may_be_asked_for_that_is_trained_on_or_none() -> None:
    """A client whose visits are for training comes again later."""

    async def work(visits: Visits) -> None:
        refused = await visits.post("/sessions", ADMIN, {"trains": True})
        assert refused.status_code == 429 and refused.headers["retry-after"] and visits.hall.reception.num_open == 0
        await visits.hall.wait()
        assert (await visits.post("/sessions", ADMIN, {"trains": True})).json()["trains"]

    visiting(work)


def test_an_agent_may_be_kept_from_telling_its_own_reward() -> None:
    """A policy that finds the path of rewards would learn to praise itself."""

    async def work(visits: Visits) -> None:
        episode = await visits.hall.wait()
        session = (await visits.post("/sessions", ADMIN, {"tells_reward": False})).json()
        await visits.ask(session["api_key"])
        refused = await visits.post("/reward", session["api_key"], {"reward": 1.0})
        assert refused.status_code == 403 and "admin key" in refused.json()["error"]["message"]
        await visits.post(f"/sessions/{session['id']}/end", ADMIN, {"reward": 0.25})
        made = await episode
        assert made is not None and made.trajectories[0].reward == 0.25

    visiting(work)


@pytest.mark.parametrize("body", [[], "no", {"trains": 1}, {"train": False}, {"trains": None}, {"tells_reward": "no"}])
def test_a_session_is_begun_with_nothing_else(body: Any) -> None:
    async def work(visits: Visits) -> None:
        refused = await visits.post("/sessions", ADMIN, body)
        assert refused.status_code == 400 and "trains" in refused.json()["error"]["message"]
        assert visits.hall.reception.num_open == 0

    visiting(work)


def test_only_the_admin_key_begins_and_ends_sessions() -> None:
    """A session's key does not, and the admin key asks nothing."""

    async def work(visits: Visits) -> None:
        session = await visits.begin()
        for key in ("", "wrong", session["api_key"]):
            assert (await visits.post("/sessions", key)).status_code == 401
            assert (await visits.post(f"/sessions/{session['id']}/end", key)).status_code == 401
            assert (await visits.http.get("/status", headers={"x-api-key": key})).status_code == 401
        asked = await visits.post("/completions", ADMIN, {"model": "policy", "prompt": "ab>"})
        assert asked.status_code == 401 and "POST /v1/sessions" in asked.json()["error"]["message"]
        told = await visits.post("/reward", ADMIN, {"reward": 1.0})
        assert told.status_code == 401 and "key of a session" in told.json()["error"]["message"]
        assert visits.hall.reception.num_open == 1

    visiting(work)


def test_more_sessions_than_may_be_open_are_refused_for_now() -> None:
    async def work(visits: Visits) -> None:
        await visits.begin()
        refused = await visits.post("/sessions", ADMIN)
        assert refused.status_code == 429 and refused.headers["retry-after"]

    visiting(work, max_sessions=1)


@pytest.mark.parametrize(
    "body",
    [
        *({"reward": 1e308}, {"reward": 1, "form": -1e13}, {"reward": 1, "a" * 65: 1}, {"reward": 1, "a\nb": 1}),
        {"reward": 1, **{f"part{n}": 1 for n in range(33)}},
    ],
)
def test_what_would_spoil_a_batch_is_refused(body: Any) -> None:
    """Sums of such numbers overflow, and names without end fill the metrics."""

    async def work(visits: Visits) -> None:
        session = await visits.begin()
        assert (await visits.post("/reward", session["api_key"], body)).status_code == 400
        assert await visits.ask(session["api_key"]) == 200

    visiting(work)


HUGE = b'{"reward": 1' + b"0" * 400 + b"}"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"good", b'"1.0"', b"{}", b'{"reward": "1"}', b"NaN", b"[" * 30_000, HUGE]
)
def test_what_is_no_reward_is_refused_and_ends_nothing(body: bytes) -> None:
    async def work(visits: Visits) -> None:
        session = await visits.begin()
        told = await visits.http.post("/reward", headers={"x-api-key": session["api_key"]}, content=body)
        assert told.status_code == 400 and told.json()["error"]["message"]
        assert await visits.ask(session["api_key"]) == 200

    visiting(work)


PATHS = st.sampled_from(
    ["/status", "/sessions", "/reward", "/sessions/x/end", "/sessions/../reward", "/models", "/%00", ""]
)


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]), path=PATHS, body=st.binary(max_size=60), key=st.booleans()
)
def test_the_fault_is_never_the_servers(method: str, path: str, body: bytes, key: bool) -> None:
    async def work(visits: Visits) -> None:
        headers = {"authorization": f"Bearer {ADMIN if key else 'wrong'}"}
        answer = await visits.http.request(method, path, headers=headers, content=body)
        assert answer.status_code < 500

    visiting(work)
