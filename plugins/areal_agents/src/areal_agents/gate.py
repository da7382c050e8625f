"""Who comes in: a request with the key of an open session, and a body that is not too large.

Knows: headers with keys, sizes of bodies.
Does not know: paths, or what is in a body.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from areal_agents.episode import AgentSession
from areal_agents.wire.problems import Problem

MAX_BODY = 32 << 20
"""Bytes."""
_SESSION = "areal.session"


class Gate:
    """Stands before the application; behind it `session_of` a request is known."""

    def __init__(self, app: ASGIApp, sessions: Mapping[str, AgentSession]) -> None:
        """Let in who has a key of `sessions`, as they are at the time."""
        self._app, self._sessions = app, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 401, or pass on. Of what is no HTTP, nothing comes here."""
        headers = Headers(scope=scope)
        session = self._sessions.get(key_of(headers))
        if session is None:
            await _drain(receive)
            why = "no session has this key: it is over, or the key is of another run"
            problem = Problem(status=401, message=why)
            await JSONResponse(problem.body(scope["path"]), status_code=401)(scope, receive, send)
            return
        await self._app({**scope, _SESSION: session}, _limited(receive), send)


def session_of(request: Request) -> AgentSession:
    """Return the session whose key a request carries."""
    session: AgentSession = request.scope[_SESSION]
    return session


def key_of(headers: Headers) -> str:
    """Return the key of a request, as OpenAI's clients send it, or Anthropic's."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def _limited(receive: Receive) -> Receive:
    """Return what refuses a body that is too large, once all of it was sent: clients read no answer before."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            if message.get("more_body"):
                await _drain(receive)
            raise HTTPException(413, f"the body is larger than {MAX_BODY >> 20} MiB")
        return message

    return counted


async def _drain(receive: Receive) -> None:
    """Throw the rest of a body away."""
    while (await receive()).get("more_body"):
        pass
