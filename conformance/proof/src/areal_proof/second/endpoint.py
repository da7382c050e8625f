"""A second endpoint: plain handlers, bodies read by hand, trajectories put together when they are asked for.

What was said is found again by what it says: the conversation so far, written as JSON.

Knows: keys, what goes on from what, which failure is whose.
Does not know: fields of bodies (`endpoint_bodies`) and of answers (`endpoint_answers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from attrs import define, evolve, field, frozen, validators

from areal_agentic.endpoint import Export, SessionLimits
from areal_agentic.renderer import BoundRenderer
from areal_core.contract.data import Trajectory
from areal_core.contract.errors import BatchError, CapabilityError, DatasetError, PromptTooLong
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import Session
from areal_proof.second.endpoint_answers import WRITERS, Said, error_body, streamed
from areal_proof.second.endpoint_bodies import READERS, Json, Refused, Wanted
from areal_proof.second.renderer import SecondRenderer

ITS_OWN = (PromptTooLong, CapabilityError, BatchError, DatasetError)
"""What is the request's fault."""


@frozen(kw_only=True)
class SecondEndpointConfig:
    """What answers become."""

    export: str = field(default=Export.CONCATENATED.value, validator=validators.in_([*Export]))


@define(eq=False, kw_only=True)
class Answered:
    """One answer of the engine, and what it was asked with."""

    prompt_ids: tuple[int, ...]
    made: Generation
    request: int

    @property
    def whole(self) -> tuple[int, ...]:
        """Return the prompt and the answer."""
        return (*self.prompt_ids, *self.made.output_ids)


@define(eq=False)
class SecondOpen:
    """Satisfies `OpenSession`."""

    key: str
    session: Session
    limits: SessionLimits
    export: str
    renderer: BoundRenderer
    reward: float | None = None
    failure: BaseException | None = None
    last: tuple[Sequence[int], Generation] | None = None
    num_answers: int = 0
    num_asked: int = 0
    over: bool = False
    answers: list[Answered] = field(factory=list)
    known: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Json, ...]]] = field(factory=dict)
    """A conversation with its answer -> the prompt's tokens, the answer's, the messages before the answer."""
    running: set[asyncio.Future[Any]] = field(factory=set)
    room: asyncio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.room = asyncio.Semaphore(self.limits.concurrency)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return what an episode's metrics hold of it."""
        return {"agent/requests": self.num_answers, "agent/trajectories": len(self.lines()), "agent/restarted": 0}

    async def ask(self, wanted: Wanted) -> tuple[tuple[int, ...], list[Said]]:
        """Answer one request, and keep it."""
        if self.num_asked >= self.limits.max_requests:
            raise Refused(f"all {self.limits.max_requests} requests of this session were made", 429)
        prompt = self.prompt_of(wanted)
        self.num_asked += 1
        asking = asyncio.ensure_future(self.generate(prompt, wanted))
        self.running.add(asking)
        try:
            made = await asking
        finally:
            asking.cancel()
            self.running.discard(asking)
        return prompt, self.keep(wanted, prompt, made)

    def prompt_of(self, wanted: Wanted) -> tuple[int, ...]:
        """Return the tokens of a request: those known of its beginning, and what the renderer puts behind them."""
        if isinstance(wanted.prompt, tuple):
            self.refuse_strangers(wanted.prompt)
            return wanted.prompt
        if wanted.prompt is not None:
            return tuple(self.session.tokenizer.encode(wanted.prompt, add_special_tokens=False))
        found = self.went_on(wanted)
        return found or tuple(self.renderer.render(wanted.messages, tools=wanted.tools))

    def refuse_strangers(self, ids: Sequence[int]) -> None:
        """Refuse ids that are no tokens."""
        size = len(self.session.tokenizer)  # type: ignore[arg-type]  # a Hugging Face one
        if strange := [token for token in ids if token >= size]:
            raise Refused(f"{strange[:3]} are no tokens: there are {size}")

    def went_on(self, wanted: Wanted) -> tuple[int, ...] | None:
        """Return the tokens of a request that goes on from an answer, None for others."""
        places = [at for at, one in enumerate(wanted.messages) if one["role"] == "assistant"]
        if not places:
            return None
        begin, rest = wanted.messages[: places[-1] + 1], wanted.messages[places[-1] + 1 :]
        before = self.known.get(told(begin, wanted.tools))
        if before is None or not rest:
            return None
        prompt, output, history = before
        bridge = self.renderer.bridge(history, output, rest, tools=wanted.tools)
        return None if bridge is None else (*prompt, *output, *bridge)

    async def generate(self, prompt: tuple[int, ...], wanted: Wanted) -> list[Generation]:
        """Ask the engine, as often as answers are wanted."""
        return list(await asyncio.gather(*(self.one(prompt, self.sampling(wanted)) for _ in range(wanted.n))))

    async def one(self, prompt: tuple[int, ...], sampling: SamplingParams) -> Generation:
        """Ask the engine once, when there is room."""
        async with self.room:
            return await self.session.generate(prompt, sampling)

    def sampling(self, wanted: Wanted) -> SamplingParams:
        """Return the run's sampling, ended earlier where that is asked for."""
        mine = self.session.sampling
        most = mine.max_new_tokens if wanted.limit is None else min(mine.max_new_tokens, wanted.limit)
        return evolve(mine, max_new_tokens=most, stop=(*mine.stop, *wanted.stops))

    def keep(self, wanted: Wanted, prompt: tuple[int, ...], made: Sequence[Generation]) -> list[Said]:
        """Keep the answers to a request, and return how they read."""
        self.num_answers += 1
        self.last = (prompt, made[0])
        said = [self.read(one, wanted) for one in made]
        for one in said:
            self.answers.append(Answered(prompt_ids=prompt, made=one.generation, request=self.num_answers))
            if wanted.prompt is None:
                message = {**one.answer.message, **({"tool_calls": list(one.calls)} if one.calls else {})}
                key = told((*wanted.messages, message), wanted.tools)
                self.known[key] = (prompt, one.generation.output_ids, wanted.messages)
        return said

    def read(self, made: Generation, wanted: Wanted) -> Said:
        """Return how an answer reads."""
        answer = self.renderer.parse(made.output_ids, tools=wanted.tools)
        calls = [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
        return Said(generation=made, answer=answer, pieces=self.pieces(made.output_ids), calls=tuple(calls))

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text that each token adds."""
        texts = [self.session.tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
        clean = [text.rstrip("\ufffd") for text in texts[:-1]] + texts[-1:]
        return tuple(after[len(before) :] for before, after in itertools.pairwise(clean))

    def lines(self) -> list[list[Answered]]:
        """Return the answers of each trajectory, first to last: the newest take along what they went on from."""
        if self.export == Export.INDIVIDUAL:
            return [[one] for one in self.answers]
        taken: set[int] = set()
        made: list[list[Answered]] = []
        for newest in reversed(self.answers):
            line: list[Answered] = []
            one: Answered | None = newest
            while one is not None and id(one) not in taken:
                taken.add(id(one))
                line.insert(0, one)
                one = self.before(one)
            if line:
                made.insert(0, line)
        return made

    def before(self, one: Answered) -> Answered | None:
        """Return the answer that another one went on from: the longest that its prompt begins with."""
        prompt = one.prompt_ids
        fitting = [other for other in self.answers if other is not one and prompt[: len(other.whole)] == other.whole]
        return max(fitting, key=lambda other: len(other.whole), default=None)

    def trajectories(self, reward: float, *, turn_discount: float = 1.0) -> tuple[Trajectory, ...]:
        """Return what the engine said, as the contract has it."""
        return tuple(
            self.joined(line, reward * turn_discount ** (self.num_answers - line[-1].request)) for line in self.lines()
        )

    def joined(self, line: Sequence[Answered], reward: float) -> Trajectory:
        """Return the trajectory of some answers, each behind the one before."""
        import torch

        ids = torch.tensor(line[-1].whole)
        mask = torch.zeros(len(ids), dtype=torch.bool)
        logprobs = torch.zeros(len(ids))
        versions = torch.full((len(ids),), -1, dtype=torch.int32)
        for one in line:
            start = len(one.prompt_ids)
            stop = start + len(one.made.output_ids)
            mask[start:stop] = True
            logprobs[start:stop] = torch.tensor(one.made.logprobs)
            for span in one.made.version_spans:
                versions[start + span.start : start + span.stop] = span.version
        return Trajectory(
            input_ids=ids,
            loss_mask=mask,
            logprobs=logprobs,
            versions=versions,
            reward=reward,
            stop_reason=line[-1].made.stop_reason,
        )

    def tell(self, reward: float) -> None:
        """Keep a reward."""
        self.reward = reward

    def end(self) -> None:
        """Cancel what is in flight."""
        self.over = True
        for asking in list(self.running):
            asking.cancel()


def told(messages: Sequence[Json], tools: Sequence[Json]) -> str:
    """Return what a conversation says, so that it is known again."""
    said = []
    for one in messages:
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in _calls(one)]
        content = one["content"].strip() if one["role"] == "assistant" else one["content"]
        said.append([one["role"], content, calls, one.get("tool_call_id")])
    return json.dumps([said, list(tools)], sort_keys=True)


def _calls(message: Json) -> Sequence[Json]:
    return message.get("tool_calls") or ()


class SecondEndpoint:
    """Role `endpoint`, contract 1.0."""

    opens: type[SecondOpen] = SecondOpen
    host = "127.0.0.1"

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
        app = web.Application(client_max_size=16 * 2**20)
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
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
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
        whole = WRITERS[path](made, len(prompt), wanted.logprobs)
        return await self.pieces(request, path, whole) if wanted.stream else web.json_response(whole)

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
