"""The paths of the endpoint: from a body to an answer, a stream, or a problem.

Knows: status codes, streams, clients that go away.
Does not know: keys (`gate`), the fields of an API (`wire`), how answers are made (`answering`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from attrs import frozen
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from areal_agents.answering import answer, prompt_of
from areal_agents.asked import Replies
from areal_agents.episode import AgentSession, SessionOver, TooManyRequests
from areal_agents.gate import session_of
from areal_agents.wire.body import MODEL, Api, Body, Json, NotDone
from areal_agents.wire.chat import ChatBody, ChatCompletions
from areal_agents.wire.completions import Completions, TextBody
from areal_agents.wire.messages import CountBody, Messages, MessagesBody
from areal_agents.wire.problems import Problem
from areal_agents.wire.responses import Responses, ResponsesBody
from areal_core.contract.errors import (
    ArealError,
    BatchError,
    CapabilityError,
    DatasetError,
    EpisodeFailed,
    PromptTooLong,
)

T = TypeVar("T")
B = TypeVar("B", bound=Body)
_OF_THE_REQUEST = (PromptTooLong, CapabilityError, BatchError, DatasetError)
"""What is wrong with what was asked; anything else is the fleet's failure, and the session's."""
_ANSWERING = tuple(f"/v1/{name}" for name in ("completions", "chat/completions", "responses", "messages"))


class Reward(Body):
    """A body of `/reward`."""

    reward: float = Field(allow_inf_nan=False, strict=True)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@frozen
class Paths:
    """All paths. `patience_s` is how long a stream may say nothing: then it says that it is there, again and again."""

    patience_s: float

    def app(self) -> FastAPI:
        """Return the application, to stand behind a gate."""
        app = FastAPI(openapi_url=None, telemetry={"auto_configure": False, "exclude": lambda scope: True})
        app.add_exception_handler(RequestValidationError, _unreadable)
        app.add_exception_handler(HTTPException, _refused)
        app.add_api_route("/v1/models", _models)
        app.add_api_route("/v1/models/{name:path}", _model)
        app.add_api_route("/v1/reward", _reward, methods=["POST"])
        app.add_api_route("/v1/completions", self._completions, methods=["POST"], response_model=None)
        app.add_api_route("/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/responses", self._responses, methods=["POST"], response_model=None)
        app.add_api_route("/v1/messages", self._messages, methods=["POST"], response_model=None)
        app.add_api_route("/v1/messages/count_tokens", _count, methods=["POST"], response_model=None)
        return app

    async def _completions(self, request: Request, body: TextBody) -> Response:
        return await self._answered(request, Completions(), body, body.stream)

    async def _chat(self, request: Request, body: ChatBody) -> Response:
        return await self._answered(request, ChatCompletions(), body, body.stream)

    async def _responses(self, request: Request, body: ResponsesBody) -> Response:
        return await self._answered(request, Responses(), body, body.stream)

    async def _messages(self, request: Request, body: MessagesBody) -> Response:
        return await self._answered(request, Messages(), body, body.stream)

    async def _answered(self, request: Request, api: Api[B], body: B, stream: bool | None) -> Response:
        session = session_of(request)
        work = asyncio.create_task(_outcome(request, session, api, body))
        try:
            await asyncio.wait({work}, timeout=self.patience_s if stream else None)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not work.done():
            pinged = self._pinged(request.url.path, api, body, work)
            return StreamingResponse(pinged, media_type="text/event-stream")
        outcome = await work
        if isinstance(outcome, Problem):
            return _said(request, outcome)
        if stream:
            return StreamingResponse(api.events(body, outcome), media_type="text/event-stream")
        return _json(api.whole(body, outcome))

    async def _pinged(
        self, path: str, api: Api[B], body: B, work: asyncio.Task[Replies | Problem]
    ) -> AsyncIterator[str]:
        """Say that the answer is awaited until it is there; a problem then is the end of the stream."""
        try:
            while not work.done():
                yield api.ping
                await asyncio.wait({work}, timeout=self.patience_s)
            outcome = await work
            if isinstance(outcome, Problem):
                yield outcome.event(path)
                return
            for each in api.events(body, outcome):
                yield each
        finally:
            work.cancel()


async def _outcome(request: Request, session: AgentSession, api: Api[B], body: B) -> Replies | Problem:
    """Return the answers, or why there are none; cancelled when the client goes away or the session is over."""
    try:
        ask = api.asked(body, session)
        replies = await session.during(_connected(request, lambda: answer(session, ask)))
        api.answered(body, ask, replies, session)
        return replies
    except NotDone as error:
        session.refused = _not_done(str(error))
        return Problem(status=error.status, message=str(error))
    except TooManyRequests as error:
        return Problem(status=429, message=str(error))
    except SessionOver as error:
        return Problem(status=401, message=str(error))
    except ClientGone:
        return Problem(status=400, message="the client went away")
    except _OF_THE_REQUEST as error:
        session.refused = error
        return _of_the_request(error)
    except Exception as error:  # whatever a fleet fails with: the session fails with it, and the agent is told
        session.failure = error
        return Problem(status=503, message=error.what if isinstance(error, ArealError) else type(error).__name__)


async def _connected(request: Request, work: Callable[[], Coroutine[Any, Any, T]]) -> T:  # Any: as coroutines have it
    """Await work for as long as its client does; it is not begun if the session is over before."""
    working, gone = asyncio.create_task(work()), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return await working
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _models(request: Request) -> Json:
    told = _described(request, MODEL)
    if "type" in told:
        return {"data": [told], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    return {"object": "list", "data": [told]}


async def _model(request: Request, name: str) -> Json:
    return _described(request, name)


def _described(request: Request, name: str) -> Json:
    """Return the policy, whatever an agent calls it, in the words of the API that its client speaks."""
    if "anthropic-version" in request.headers:
        told = {"display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
        return {"id": name, "type": "model", **told}
    return {"id": name, "object": "model", "created": 0, "owned_by": "areal"}


async def _reward(request: Request, body: Reward) -> Json:
    session_of(request).reward = body.reward
    return {"reward": body.reward}


async def _count(request: Request, body: CountBody) -> Response:
    session = session_of(request)
    try:
        prompt = prompt_of(session, Messages().chat(body))
    except NotDone as error:
        return _said(request, Problem(status=error.status, message=str(error)))
    except DatasetError as error:
        return _said(request, _of_the_request(error))
    return _json({"input_tokens": len(prompt.ids)})


def _not_done(told: str) -> EpisodeFailed:
    """Return what an episode fails with if nothing that was asked in it was answered."""
    return EpisodeFailed(
        "the agent has no answer, and was last refused for what the endpoint cannot do",
        why=told,
        fix="have it ask otherwise: the errors that it is answered with say what there is",
    )


def _of_the_request(error: ArealError) -> Problem:
    code = "context_length_exceeded" if isinstance(error, PromptTooLong) else None
    return Problem(status=400, message=f"{error.what}: {error.why}" if error.why else error.what, code=code)


def _said(request: Request, problem: Problem) -> Response:
    # Clients try again after 429 and 5xx: neither the limit of a session nor a fleet that failed will change.
    headers = {"x-should-retry": "false"}
    return _json(problem.body(request.url.path), problem.status, headers)


def _json(body: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a body in ASCII: a model may write what no UTF-8 can."""
    return Response(json.dumps(body), status, headers, "application/json")


def _unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{'.'.join(map(str, each['loc'][1:])) or 'body'}: {each['msg']}" for each in error.errors()[:4])
    if request.url.path in _ANSWERING:
        session_of(request).refused = _not_done(told)
    return _said(request, Problem(status=400, message=told))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _said(request, Problem(status=error.status_code, message=str(error.detail)))
