"""A second endpoint: plain handlers, bodies read by hand, trajectories put together when they are asked for.

Knows: keys, status codes, which failure is whose.
Does not know: what a session keeps (`endpoint_session`), fields of bodies (`endpoint_bodies`) and of answers
(`endpoint_answers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiohttp import web
from attrs import field, frozen, validators

from areal_agentic.endpoint import Export, SessionLimits
from areal_core.contract.errors import BatchError, CapabilityError, DatasetError, PromptTooLong
from areal_core.contract.workflow import Session
from areal_proof.second.endpoint_answers import WRITERS, Said, error_body, streamed
from areal_proof.second.endpoint_bodies import READERS, Json, Refused, Wanted
from areal_proof.second.endpoint_session import SecondOpen
from areal_proof.second.renderer import SecondRenderer

ITS_OWN = (PromptTooLong, CapabilityError, BatchError, DatasetError)
"""What is the request's fault."""


@frozen(kw_only=True)
class SecondEndpointConfig:
    """What answers become."""

    export: str = field(default=Export.CONCATENATED.value, validator=validators.in_([*Export]))


class SecondEndpoint:
    """Role `endpoint`, contract 1.0."""

    opens: type[SecondOpen] = SecondOpen
    host = "127.0.0.1"
    largest = 16 * 2**20
    """Bytes of a body."""

    def __init__(self, config: SecondEndpointConfig | None = None) -> None:
        self.config = config or SecondEndpointConfig()
        self.sessions: dict[str, SecondOpen] = {}
        self.runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Return the base URL of OpenAI's clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """Listen on a free port."""
        if self.runner is not None:
            return
        app = web.Application(client_max_size=self.largest)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
        await self.runner.setup()
        site = web.TCPSite(self.runner, self.host, 0)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def close(self) -> None:
        """Cancel everything and stop listening."""
        for one in self.sessions.values():
            one.end()
        runner, self.runner = self.runner, None
        if runner is not None:
            await runner.cleanup()

    @contextmanager
    def open(self, session: Session, limits: SessionLimits | None = None) -> Iterator[SecondOpen]:
        """Open a session under a new key."""
        renderer = SecondRenderer().bind(session.tokenizer)
        opened = self.opens(self.new_key(), session, limits or SessionLimits(), self.config.export, renderer)
        self.sessions[opened.key] = opened
        try:
            yield opened
        finally:
            self.forget(opened)

    def forget(self, opened: SecondOpen) -> None:
        """End a session: its key opens nothing any more."""
        self.sessions.pop(opened.key, None)
        opened.end()

    def new_key(self) -> str:
        """Return a key like no other."""
        return f"second-{secrets.token_hex(32)}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, whatever it is."""
        path = request.match_info["path"].removeprefix("v1/")
        try:
            opened = self.session_of(request)
            if path == "models" and request.method == "GET":
                return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})
            if path not in READERS and path != "reward":
                raise Refused(f"there is no /{path}", 404)
            if request.method != "POST":
                raise Refused(f"/{path} takes POST", 405)
            body = await self.body_of(request)
            if path == "reward":
                opened.tell(self.reward_of(body))
                return web.json_response({"reward": opened.reward})
            return await self.said(request, path, opened, READERS[path](body))
        except Refused as error:
            return self.refused(path, str(error), error.status)
        except web.HTTPException as error:
            return self.refused(path, error.reason, error.status)

    def session_of(self, request: web.Request) -> SecondOpen:
        """Return the session whose key a request carries."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = request.headers.get("x-api-key") or (key if scheme.lower() == "bearer" else "")
        if key not in self.sessions:
            raise Refused("no session has this key", 401)
        return self.sessions[key]

    async def body_of(self, request: web.Request) -> Json:
        """Return the object that a request carries."""
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise Refused(f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused("the body is no object")
        return body

    def reward_of(self, body: Json) -> float:
        """Return the reward that is told."""
        value = body.get("reward")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Refused("the reward is no finite number")
        return float(value)

    async def said(self, request: web.Request, path: str, opened: SecondOpen, wanted: Wanted) -> web.StreamResponse:
        """Return what the engine said, in the form that was asked for."""
        try:
            prompt, made = await opened.ask(wanted)
        except ITS_OWN as error:
            return self.refused(path, f"{error.what}: {error.why}", 400)
        except Refused:
            raise
        except asyncio.CancelledError:
            if not opened.over:
                raise
            return self.refused(path, "the session is over", 401)
        except Exception as error:
            return self.failed(path, opened, error)
        whole = self.whole(path, len(prompt), made, wanted)
        if path == "responses":
            begun = opened.responses.get(wanted.previous, ())
            opened.responses[whole["id"]] = (*begun, *wanted.messages[wanted.instructions :], made[0].message)
        return await self.pieces(request, path, whole) if wanted.stream else web.json_response(whole)

    def whole(self, path: str, num_prompt: int, made: Sequence[Said], wanted: Wanted) -> Json:
        """Return an answer that is not streamed."""
        return WRITERS[path](made, num_prompt, wanted.logprobs)

    def failed(self, path: str, opened: SecondOpen, error: Exception) -> web.Response:
        """Tell a failure of the fleet, and keep it."""
        opened.failure = error
        return self.refused(path, f"the fleet failed: {error}", 503)

    async def pieces(self, request: web.Request, path: str, whole: Json) -> web.StreamResponse:
        """Send an answer as events."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the client has gone away; what was said stays said
            for event in self.events(path, whole):
                await response.write(event.encode())
            await response.write_eof()
        return response

    def events(self, path: str, whole: Json) -> list[str]:
        """Return the events of an answer."""
        return list(streamed(path, whole))

    def refused(self, path: str, why: str, status: int) -> web.Response:
        """Say what is wrong."""
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return web.json_response(error_body(path, why, kind), status=status)
