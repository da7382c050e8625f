"""The server agents talk to: on loopback, a key for every episode, OpenAI's paths.

Knows: keys, paths, status codes.
Does not know: what a request means for an episode (`episode`), or the fields of bodies (`wire`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from areal_agentic.endpoint import SessionLimits
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.episode import AgentSession, TooManyRequests
from areal_agents.wire import (
    MODEL,
    Asked,
    ChatAsked,
    Json,
    Reward,
    TextAsked,
    chat_choice,
    error_body,
    streamed,
    text_choice,
    usage,
    whole,
)
from areal_core.contract.errors import ArealError, BatchError, CapabilityError, DatasetError, PromptTooLong
from areal_core.contract.inference import Generation
from areal_core.contract.optional import ToolParse
from areal_core.contract.workflow import Session
from areal_tasks.datasets.encoding import Renderer

_OF_THE_REQUEST = (PromptTooLong, CapabilityError, BatchError, DatasetError)
"""What is wrong with what was asked; anything else is the fleet's failure, and the episode's."""


class Endpoint:
    """One server of a run. `open` gives an episode its key for as long as it lasts."""

    def __init__(self, config: EndpointConfig | None = None) -> None:
        """Take the options; nothing listens before `start`."""
        self._config = config or EndpointConfig()
        self._episodes: dict[str, AgentSession] = {}
        self._serving: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Return the base URL of clients."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def start(self) -> None:
        """Listen on a free port of loopback, until the event loop ends. Idempotent."""
        if self._serving is not None:
            return
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self._port = listening.getsockname()[1]
        server = _Server(
            uvicorn.Config(self.app(), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )

        async def serve() -> None:
            with listening:
                await server.serve(sockets=[listening])

        self._serving = asyncio.create_task(serve(), name="agents' endpoint")
        await server.ready.wait()

    async def close(self) -> None:
        """End it. Idempotent."""
        if self._serving is not None:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
            self._serving = None

    @contextmanager
    def open(self, session: Session, limits: SessionLimits | None = None) -> Iterator[AgentSession]:
        """Open a session for as long as the block runs; its key opens nothing afterwards."""
        opened = AgentSession(session=session, config=self._config, limits=limits or SessionLimits())
        self._episodes[opened.key] = opened
        try:
            yield opened
        finally:
            del self._episodes[opened.key]

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(openapi_url=None, telemetry={"auto_configure": False, "exclude": lambda scope: True})
        app.add_exception_handler(RequestValidationError, _unreadable)
        app.add_exception_handler(HTTPException, _refused)

        @app.get("/v1/models")
        async def models(request: Request) -> Json:
            self._of(request)
            return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "areal"}]}

        @app.post("/v1/chat/completions")
        async def chat(request: Request, body: ChatAsked) -> Response:
            episode = self._of(request)
            return await _answered(episode, _chat(episode, body), body, "chat.completion")

        @app.post("/v1/completions")
        async def text(request: Request, body: TextAsked) -> Response:
            episode = self._of(request)
            return await _answered(episode, _text(episode, body), body, "text_completion")

        @app.post("/v1/reward")
        async def reward(request: Request, body: Reward) -> Json:
            self._of(request).reward = body.reward
            return {"reward": body.reward}

        return app

    def _of(self, request: Request) -> AgentSession:
        """Return the episode whose key a request carries."""
        episode = self._episodes.get(request.headers.get("authorization", "").removeprefix("Bearer ").strip())
        if episode is None:
            raise HTTPException(401, "no episode has this key: it is over, or the key is of another run")
        return episode


async def _answered(
    episode: AgentSession, answering: Awaitable[tuple[list[Json], Json]], body: Asked, kind: str
) -> Response:
    """Await the choices and what they took, and say them in the form that was asked for."""
    try:
        choices, used = await answering
    except TooManyRequests as error:
        return _said(429, str(error), "rate_limit_error")
    except _OF_THE_REQUEST as error:
        code = "context_length_exceeded" if isinstance(error, PromptTooLong) else None
        return _said(400, f"{error.what}: {error.why}" if error.why else error.what, "invalid_request_error", code)
    except ArealError as error:
        episode.failure = error
        return _said(503, error.what, "server_error")
    if body.stream:
        told = used if body.tells_usage else None
        return StreamingResponse(streamed(kind, choices, told), media_type="text/event-stream")
    return JSONResponse(whole(kind, choices, used))


async def _chat(episode: AgentSession, body: ChatAsked) -> tuple[list[Json], Json]:
    tokenizer, row = episode.session.tokenizer, {"tools": body.tools} if body.tools else {}
    render = Renderer(tokenizer, episode.config, row, "the request")
    prompt = tokenizer.encode(render(body.messages, ask=True), add_special_tokens=False)
    generations = await episode.ask(prompt, body.limit, body.stops, body.n)
    choices = []
    for number, generation in enumerate(generations):
        parsed = await _calls(episode, generation, body.tools) if body.tools else None
        choices.append(chat_choice(number, generation, tokenizer, parsed, body.logprobs))
    return choices, usage(len(prompt), generations)


async def _calls(episode: AgentSession, generation: Generation, tools: Sequence[Json]) -> ToolParse:
    text = episode.session.tokenizer.decode(generation.output_ids, skip_special_tokens=False)
    return await episode.session.parse_tool_calls(text, tools)


async def _text(episode: AgentSession, body: TextAsked) -> tuple[list[Json], Json]:
    tokenizer = episode.session.tokenizer
    if isinstance(body.prompt, str):
        prompt = tokenizer.encode(body.prompt, add_special_tokens=episode.config.add_special_tokens)
    else:
        prompt = list(body.prompt)
    generations = await episode.ask(prompt, body.limit, body.stops, body.n)
    choices = [text_choice(number, each, tokenizer, body.logprobs) for number, each in enumerate(generations)]
    return choices, usage(len(prompt), generations)


def _said(status: int, message: str, kind: str, code: str | None = None) -> JSONResponse:
    return JSONResponse(error_body(message, kind, code), status_code=status)


def _unreadable(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{'.'.join(map(str, each['loc'][1:])) or 'body'}: {each['msg']}" for each in error.errors()[:4])
    return _said(400, told, "invalid_request_error")


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = "authentication_error" if error.status_code == 401 else "invalid_request_error"
    return _said(error.status_code, str(error.detail), kind)


class _Server(uvicorn.Server):
    """A server inside of somebody else's process: signals are not its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell that it does."""
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield
