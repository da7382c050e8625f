"""What clients of `areal serve` are answered: sessions and rewards here, all else by the endpoint.

    POST /v1/sessions               with the admin key: a key for a new session
    POST /v1/sessions/ID/end        with the admin key: the session is over, with a reward or without
    GET  /v1/sessions               with the admin key: counts
    POST /v1/reward                 with the session's key: its reward, which ends it

Knows: paths, keys, status codes.
Does not know: what becomes of a session (`reception`), or OpenAI's fields (the endpoint).
"""

from __future__ import annotations

import json
import secrets

from attrs import asdict
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from areal_agents.gate import key_of
from areal_agents.serve.reception import ClientSession, Full, Reception
from areal_agents.told import reward_told
from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult

_MOST_BYTES = 65_536
_OVER = "no session has this key: it is over, or the key is of another run"


class OnlineApp:
    """The application. `admin_key` begins and ends sessions."""

    def __init__(self, reception: Reception, endpoint: ASGIApp, admin_key: str) -> None:
        self._reception, self._endpoint, self._admin_key = reception, endpoint, admin_key
        routes = [
            Route("/v1/sessions", self._begin, methods=["POST"]),
            Route("/v1/sessions", self._tell, methods=["GET"]),
            Route("/v1/sessions/{name}/end", self._end, methods=["POST"]),
            Route("/v1/reward", self._reward, methods=["POST"]),
            Mount("/", app=self._forward),
        ]
        self.asgi: ASGIApp = Starlette(routes=routes, exception_handlers={HTTPException: _refused})

    async def _begin(self, request: Request) -> JSONResponse:
        self._check_admin(request)
        try:
            session = self._reception.begin()
        except Full:
            raise HTTPException(429, "no more sessions may begin now", {"retry-after": "5"}) from None
        told = {"id": session.id, "api_key": session.opened.key, "trains": session.trains}
        return JSONResponse(told, status_code=201)

    async def _tell(self, request: Request) -> JSONResponse:
        self._check_admin(request)
        here = {"open": self._reception.num_open, "episodes_waiting": self._reception.num_waiting}
        return JSONResponse({**here, **asdict(self._reception.counts)})

    async def _end(self, request: Request) -> JSONResponse:
        self._check_admin(request)
        session = self._reception.of_id(request.path_params["name"])
        if session is None:
            raise HTTPException(404, "no session of this id is open")
        return _ended(session, await _told(request))

    async def _reward(self, request: Request) -> JSONResponse:
        session = self._reception.of_key(key_of(request.headers))
        if session is None:
            raise HTTPException(401, _OVER)
        reward = await _told(request)
        if reward is None:
            raise HTTPException(400, 'a reward is a number: {"reward": 0.5}')
        return _ended(session, reward)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the endpoint answer; the session of the key is busy meanwhile."""
        session = self._reception.of_key(key_of(Headers(scope=scope))) if scope["type"] == "http" else None
        if session is None:
            await self._endpoint(scope, receive, send)
            return
        with session.request():
            await self._endpoint(scope, receive, send)

    def _check_admin(self, request: Request) -> None:
        if not secrets.compare_digest(key_of(request.headers).encode(), self._admin_key.encode()):
            raise HTTPException(401, "this takes the admin key, which stands in the run folder")


async def _told(request: Request) -> RewardResult | None:
    """Return the reward in a body; None if it holds none."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"more than {_MOST_BYTES} bytes")
    if not body.strip():
        return None
    try:
        return reward_told(json.loads(body), "of the session")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from None
    except EpisodeFailed as error:
        raise HTTPException(400, f'{error.why}; say {{"reward": 0.5}}, other numbers beside it are its parts') from None


def _ended(session: ClientSession, reward: RewardResult | None) -> JSONResponse:
    session.end(reward)
    said = session.reward
    return JSONResponse({"id": session.id, "reward": said.value if said else None, "trains": session.teaches})


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(error.status_code, "invalid_request_error")
    body = {"error": {"message": error.detail, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
