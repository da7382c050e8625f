"""What clients of `areal serve` are answered: sessions and rewards here, all else by the endpoint.

    GET  /health                    whether sessions may begin, and the version that is served
    GET  /v1/status                 with the admin key: that and counts of sessions
    POST /v1/sessions               with the admin key: a key for a new session
    POST /v1/sessions/ID/end        with the admin key: the session is over, with a reward or without
    POST /v1/reward                 with the session's key: its reward, which ends it

Knows: paths, keys, status codes.
Does not know: what becomes of a session (`reception`), or OpenAI's fields (the endpoint).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from attrs import asdict
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from areal_agents.gate import key_of
from areal_agents.serve.config import KEY_FILE
from areal_agents.serve.reception import ClientSession, Full, NobodyWaits, NotServing, Reception
from areal_agents.told import reward_told
from areal_agents.wire.problems import Problem
from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult

_MOST_BYTES = 65_536
_MOST_NUMBER = 1e12
"""Beyond, sums and squares of a batch's rewards overflow: one client would end the run."""
_MOST_PARTS, _MOST_LETTERS = 32, 64
_OF_A_SESSION = frozenset({"trains", "tells_reward"})
_OVER = "no session has this key: it is over, or the key is of another run"
_OF_THE_ADMIN = (
    "the admin key is for POST /v1/sessions, POST /v1/sessions/ID/end and GET /v1/status; "
    "the key of a session asks the policy and tells the reward"
)
_LATER = {"retry-after": "5"}


class OnlineApp:
    """The application. `admin_key` begins and ends sessions."""

    def __init__(self, reception: Reception, endpoint: ASGIApp, admin_key: str) -> None:
        self._reception, self._endpoint, self._admin_key = reception, endpoint, admin_key
        routes = [
            Route("/health", self._health),
            Route("/v1/status", self._tell),
            Route("/v1/sessions", self._begin, methods=["POST"]),
            Route("/v1/sessions/{name}/end", self._end, methods=["POST"]),
            Route("/v1/reward", self._reward, methods=["POST"]),
            Mount("/", app=self._forward),
        ]
        self.asgi: ASGIApp = Starlette(routes=routes, exception_handlers={HTTPException: _refused})

    async def _health(self, request: Request) -> JSONResponse:
        return JSONResponse(self._state(), status_code=200 if self._reception.serves else 503)

    async def _tell(self, request: Request) -> JSONResponse:
        self._check_admin(request)
        here = {"open": self._reception.num_open, "episodes_waiting": self._reception.num_waiting}
        return JSONResponse({**self._state(), **here, **asdict(self._reception.counts)})

    def _state(self) -> dict[str, str | int]:
        if not self._reception.serves:
            return {"status": "not serving"}
        return {"status": "serving", "version": self._reception.version()}

    async def _begin(self, request: Request) -> JSONResponse:
        self._check_admin(request)
        asked = await _asked(request)
        try:
            session = self._reception.begin(trains=asked.get("trains"), tells=asked.get("tells_reward", True))
        except NotServing:
            raise HTTPException(503, "the policy is not served now", _LATER) from None
        except Full:
            raise HTTPException(429, "as many sessions are open as may be (max_sessions)", _LATER) from None
        except NobodyWaits:
            raise HTTPException(429, "no session may begin now that is trained on", _LATER) from None
        told = {"id": session.id, "api_key": session.opened.key, "trains": session.trains}
        return JSONResponse({**told, "version": self._reception.version()}, status_code=201)

    async def _end(self, request: Request) -> JSONResponse:
        self._check_admin(request)
        session = self._reception.of_id(request.path_params["name"])
        if session is None:
            raise HTTPException(404, "no session of this id is open")
        return _ended(session, await _told(request))

    async def _reward(self, request: Request) -> JSONResponse:
        session = self._reception.of_key(key_of(request.headers))
        if session is None:
            raise HTTPException(401, _OF_THE_ADMIN if self._is_admin(request.headers) else _OVER)
        if not session.tells:
            raise HTTPException(
                403, "the reward of this session is told with the admin key, to POST /v1/sessions/ID/end"
            )
        reward = await _told(request)
        if reward is None:
            raise HTTPException(400, 'a reward is a number: {"reward": 0.5}')
        return _ended(session, reward)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the endpoint answer; the session of the key is busy meanwhile."""
        headers = Headers(scope=scope)
        session = self._reception.of_key(key_of(headers))
        if session is not None:
            with session.request():
                await self._endpoint(scope, receive, send)
        elif self._is_admin(headers):
            await JSONResponse(_refusal(401, _OF_THE_ADMIN), 401)(scope, receive, send)
        else:
            await self._endpoint(scope, receive, send)

    def _is_admin(self, headers: Headers) -> bool:
        return secrets.compare_digest(key_of(headers).encode(), self._admin_key.encode())

    def _check_admin(self, request: Request) -> None:
        if not self._is_admin(request.headers):
            raise HTTPException(401, f"this takes the admin key, which stands in {KEY_FILE} of the run folder")


async def _told(request: Request) -> RewardResult | None:
    """Return the reward in a body; None if it holds none."""
    try:
        reward = reward_told(await _read(request), "of the session")
    except EpisodeFailed as error:
        raise HTTPException(400, f'{error.why}; say {{"reward": 0.5}}, other numbers beside it are its parts') from None
    if reward is not None:
        parts = reward.components
        if any(abs(number) > _MOST_NUMBER for number in (reward.value or 0.0, *parts.values())):
            raise HTTPException(400, f"a reward and its parts lie within plus and minus {_MOST_NUMBER:g}")
        if len(parts) > _MOST_PARTS or any(len(name) > _MOST_LETTERS or not name.isprintable() for name in parts):
            most = f"{_MOST_PARTS} parts at most, named in {_MOST_LETTERS} printable letters"
            raise HTTPException(400, f"a reward has {most}")
    return reward


async def _asked(request: Request) -> Mapping[str, bool]:
    """Return what the body that begins a session asks for."""
    asked = await _read(request)
    if asked is None:
        return {}
    known = isinstance(asked, dict) and _OF_A_SESSION.issuperset(asked)
    if not known or not all(isinstance(value, bool) for value in asked.values()):
        raise HTTPException(400, f"the body of a session has {' and '.join(sorted(_OF_A_SESSION))}, true or false")
    return dict(asked)


async def _read(request: Request) -> Any:  # Any: JSON
    """Return what a body holds; None if nothing."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"the body is larger than {_MOST_BYTES} bytes")
    try:
        return json.loads(body) if body.strip() else None
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from None


def _ended(session: ClientSession, reward: RewardResult | None) -> JSONResponse:
    session.end(reward)
    told = {"id": session.id, "reward": session.reward.value if session.reward else None}
    return JSONResponse({**told, "trains": session.teaches, "versions": session.versions})


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(_refusal(error.status_code, error.detail), error.status_code, error.headers)


def _refusal(status: int, message: str) -> Mapping[str, Any]:  # Any: JSON
    return Problem(status=status, message=message).body("")
