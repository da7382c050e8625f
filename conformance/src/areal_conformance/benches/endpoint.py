"""What a check of an endpoint is given: the endpoint, sessions whose answers follow a script, and agents that ask it.

The answers are in tokens that no tokenizer would choose, in three versions each, and no two are alike: whatever was
decoded and encoded again, lost, crossed or stamped otherwise is seen in the trajectories.

Knows: how an endpoint is started, asked and let go, and how trajectories are compared with what the engine gave.
Does not know: how an endpoint does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
from attrs import define, field, frozen

from areal_agentic.endpoint import AgentEndpoint, OpenSession, SessionLimits
from areal_conformance.benches.base import Bench
from areal_conformance.benches.endpoint_forms import CHAT, Form
from areal_conformance.benches.endpoint_streams import Json, events
from areal_conformance.benches.workflow import ScriptedSession, generation, paying
from areal_conformance.benches.workflow_tokens import traced
from areal_conformance.outcome import Violation, expect
from areal_conformance.probes.tokenizers import END, tiny_tokenizer
from areal_conformance.target import Target
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.inference import Generation

KIND = "chatml"
"""The tokenizer of every session."""


def tokenizer() -> Any:
    """Return the tokenizer of every session. Any: transformers is not typed here."""
    return tiny_tokenizer(KIND)


def words(number: int) -> str:
    """Return the text of an answer, like that of no other number."""
    letters = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    return f"{'abba' * (1 + number % 3)} x{letters} ba"


def answer(number: int, *, text: str | None = None, stop: StopReason = StopReason.STOP, **fields: Any) -> Generation:
    """Return an answer in tokens that no tokenizer would choose, letter by letter, in three versions.

    Any: fields of Generation.
    """
    told = words(number) if text is None else text
    ids = [token for letter in told for token in tokenizer().encode(letter, add_special_tokens=False)]
    if stop is StopReason.STOP:
        ids.append(tokenizer().convert_tokens_to_ids(END))
    return generation(number, length=len(ids), output_ids=ids, stop=stop, **fields)


@frozen(kw_only=True)
class Told:
    """What came back: the status, and the JSON of the body, or the events of a stream."""

    status: int
    body: Any  # Any: JSON, or a text that is none
    raw: str = ""
    """The body as it came, and the headers."""
    events: tuple[Json, ...] = ()

    @property
    def reason(self) -> str:
        """Return why something was refused; empty if nothing says so."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("message") or "") if isinstance(error, dict) else ""


@define(kw_only=True)
class Agent:
    """One client with one key, and the conversation that it holds."""

    http: aiohttp.ClientSession
    url: str
    key: str
    form: Form = CHAT
    history: list[Json] = field(factory=list)

    async def post(self, path: str, body: Any, **headers: str) -> Told:  # Any: JSON, or bytes as they are
        """Post a body; `headers` take the place of the key's, an empty one is left out."""
        given = {**self.form.headers(self.key), **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **{name: value for name, value in given.items() if value}}
        async with self.http.post(f"{self.url}{path}", data=data, headers=sent) as response:
            return _told(response, await response.text())

    async def get(self, path: str, **headers: str) -> Told:
        """Get a path."""
        given = {**self.form.headers(self.key), **{name.replace("_", "-"): value for name, value in headers.items()}}
        sent = {name: value for name, value in given.items() if value}
        async with self.http.get(f"{self.url}{path}", headers=sent) as response:
            return _told(response, await response.text())

    async def ask(self, **more: Any) -> Told:
        """Ask with the history as it is. Any: further fields of the body."""
        return await self.post(self.form.path, self.form.body(self.history, **more))

    async def say(self, text: str, **more: Any) -> str:
        """Say something, keep the answer in the history, and return its text; Violation if there is none.

        Any: further fields of the body.
        """
        self.history.append(self.form.asked(text))
        made = answered(self.form, await self.ask(**more), f"{self.form.name}: {text!r}")
        self.history += self.form.echo(made)
        return self.form.text(made)

    async def reward(self, value: Any) -> Told:  # Any: JSON, a number if it is right
        """Tell a reward."""
        return await self.post("/reward", {"reward": value})


def answered(form: Form, told: Told, what: str) -> Json:
    """Return an answer, that of a stream put together; Violation if it is none."""
    if told.status != 200:
        raise Violation(f"{what}: an answer was due, not {told.status}: {told.reason or told.body}")
    try:
        made = form.whole(told.events) if told.events else dict(told.body)
        form.text(made), form.calls(made)
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise Violation(f"{what}: no answer of this API: {error!r} in {told.events or told.body}") from error
    return made


def said(form: Form, told: Told, what: str) -> str:
    """Return the text of an answer; Violation if it is none."""
    return form.text(answered(form, told, what))


def _told(response: aiohttp.ClientResponse, text: str) -> Told:
    raw = f"{text}\n{dict(response.headers)}"
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return Told(status=response.status, body=text, raw=raw, events=tuple(events(text)))
    try:
        return Told(status=response.status, body=json.loads(text), raw=raw)
    except ValueError:
        return Told(status=response.status, body=text, raw=raw)


@frozen(kw_only=True)
class Opened:
    """An open session beside the script it asks, and its first agent."""

    session: ScriptedSession
    open: OpenSession
    agent: Agent


class EndpointBench(Bench):
    """One endpoint for all checks of a session of the suite, as for all episodes of a run."""

    _shared: AgentEndpoint | None = None
    _of: Target | None = None
    _http: aiohttp.ClientSession | None = None

    def __init__(self, *given: Any) -> None:  # Any: as Bench
        super().__init__(*given)
        self._made: list[AgentEndpoint] = []
        self._number = 0

    async def endpoint(self) -> AgentEndpoint:
        """Return the endpoint, started, the same for every check."""
        if self._shared is not None and self._of is not self.target:
            await self._shared.close()
            self._shared = None
        if self._shared is None:
            self._shared, self._of = self.build(), self.target
            await self.soon(self._shared.start(), "the start of an endpoint")
        return self._shared

    def fresh(self, **options: Any) -> AgentEndpoint:
        """Return another one, not started; closed after the check. Any: its options."""
        made: AgentEndpoint = self.build(**options)
        self._made.append(made)
        return made

    @property
    def http(self) -> aiohttp.ClientSession:
        """Return the client that agents share."""
        if self._http is None:
            # A server may close what was idle for a few seconds, and a busy machine lets us send into it.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30.0), connector=connector)
        return self._http

    def session(self, **fields: Any) -> ScriptedSession:
        """Return a session whose turns give answers like no others. Any: its fields."""
        self._number += 1
        first = 100 * self._number
        given = {"script": lambda turn: answer(first + turn), "judge": paying(), "tokenizer": tokenizer(), **fields}
        return ScriptedSession(image_token_id=None, **given)

    @contextlib.asynccontextmanager
    async def opened(
        self,
        form: Form = CHAT,
        *,
        limits: SessionLimits | None = None,
        endpoint: AgentEndpoint | None = None,
        **fields: Any,
    ) -> AsyncIterator[Opened]:
        """Open a session of the endpoint and give an agent its key. Any: fields of the scripted session."""
        where = endpoint or await self.endpoint()
        session = self.session(**fields)
        with where.open(session, limits) as opened:
            yield Opened(session=session, open=opened, agent=self.agent(where, opened.key, form))

    def agent(self, endpoint: AgentEndpoint, key: str, form: Form = CHAT) -> Agent:
        """Return a client."""
        return Agent(http=self.http, url=endpoint.url, key=key, form=form)

    async def end(self, *, passed: bool) -> None:
        """Close what a check made."""
        made, self._made = self._made, []
        for one in made:
            await one.close()

    async def aclose(self) -> None:
        """Close the endpoint and the client."""
        if self._http is not None:
            await self._http.close()
        if self._shared is not None:
            await self._shared.close()


def trained(opened: Opened, reward: float = 1.0, **more: Any) -> tuple[Trajectory, ...]:
    """Return the trajectories, each token traced to the engine's; every answer is on exactly one mask, once.

    Any: arguments of `trajectories`.
    """
    made = tuple(opened.open.trajectories(reward, **more))
    session = opened.session
    answered = [asked for asked in session.asked if asked.generation is not None]
    found = []
    if made:
        episode = Episode(trajectories=made, task_id=session.task_id, group_id=session.group_id)
        found = traced(episode, session)
    left = [number for number, asked in enumerate(answered) if asked not in found]
    expect(not left, f"of {len(answered)} answers those numbered {left} are on no mask: lost")
    masked = sum(int(one.loss_mask.sum()) for one in made)
    due = sum(len(asked.generation.output_ids) for asked in answered if asked.generation is not None)
    expect(masked == due, f"{masked} tokens are trained on, the engine gave {due}")
    return made


def grown(opened: Opened) -> None:
    """Expect each request to go on from the tokens of the one before and its answer."""
    asked = opened.session.asked
    for number, (before, after) in enumerate(itertools.pairwise(asked), start=1):
        assert before.generation is not None
        whole = (*before.input_ids, *before.generation.output_ids)
        seen = after.input_ids[: len(whole)]
        told = f"turn {number} was {text_of(whole)!r} in {len(whole)} tokens; the next is asked with other ones"
        expect(seen == whole, f"{told}: its beginning is {text_of(seen)!r}")


def text_of(ids: Sequence[int]) -> str:
    """Return the text of tokens, special ones with them."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))


def read(ids: Sequence[int]) -> str:
    """Return the text of tokens as an agent reads it, without special ones."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=True))


class Gate:
    """Holds the engine's answers back, and tells who waits and who was cancelled. For `at_generate` of a session."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[int] = asyncio.Queue()
        """Turns that wait here, as they come."""
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        """Turns whose request was cancelled."""
        self.go = asyncio.Event()

    async def __call__(self, turn: int) -> None:
        """Wait until `go` is set."""
        self.began.put_nowait(turn)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.put_nowait(turn)
            raise
