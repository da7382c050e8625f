"""Two hundred agents at once over real connections: nothing is lost, nothing crosses, nothing is left.

The fleet is real but for its model: routing, weight updates that abort what is in flight, requests that go on.
A prompt with a Z is never answered; whoever asks with one goes away, or is over, before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
from attrs import define, field

from areal_agentic.endpoint import SessionLimits
from areal_agents.endpoint import Endpoint
from areal_core.contract.data import Trajectory
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import Generation, GenerationRequest, PauseMode, SamplingParams
from areal_core.fleet.pool import InferencePool
from areal_core.rollout.session import PoolSession, PoolSessions
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import ScriptedEngine, ScriptedWorker, seeded_length

from .speaking import TOKENIZER

NEVER = 10**6
NUM_SESSIONS = 200
_LENGTH = seeded_length(2, 12)
Token = tuple[tuple[int, ...], int, float, int]


def length(request: GenerationRequest) -> int:
    return NEVER if ord("Z") - ord("!") in request.input_ids else _LENGTH(request)


class Ticking(StepClock):
    """Does not wait for the loop to run dry: sockets of two hundred clients never let it."""

    async def settle(self) -> None:
        await asyncio.sleep(0)


class Asking(PoolSession):
    """Tells when a request of it has begun."""

    def __init__(self, name: str, source: PoolSessions) -> None:
        super().__init__(task_id=TaskId(name), name=name, seed_name=name, sampling=source.sampling, source=source)
        self.begun = asyncio.Semaphore(0)

    async def generate(self, *args: Any, **more: Any) -> Generation:
        self.begun.release()
        return await super().generate(*args, **more)


class Fleet:
    """Two replicas on a clock of their own, which get new weights every few tokens."""

    def __init__(self) -> None:
        self.clock = Ticking()
        self.engines = [ScriptedEngine(self.clock, length=length) for _ in range(2)]
        workers = [ScriptedWorker(each, id=f"infer/{n}", clock=self.clock) for n, each in enumerate(self.engines)]
        self.pool = InferencePool(workers, clock=self.clock)
        self.sessions = PoolSessions(
            pool=self.pool, rewards=None, tokenizer=TOKENIZER, sampling=SamplingParams(max_new_tokens=NEVER), seed=5
        )

    def open(self, name: str) -> Asking:
        return Asking(name, self.sessions)

    async def run(self) -> None:
        """Make tokens, and update the weights after every third of them, until cancelled."""
        for tick in range(NEVER):
            await self.clock.advance(1.0)
            if tick % 3 == 2:
                self.pool.suspend()
                for engine in self.engines:
                    await engine.pause(PauseMode.ABORT if tick % 2 else PauseMode.KEEP)
                    engine.version += 1
                    await engine.resume()
                self.pool.release()

    @property
    def num_running(self) -> int:
        return self.pool.in_flight + sum(len(engine._producers) for engine in self.engines)


@define(eq=False)
class Agent:
    """One agent with a session of its own; `told` is what it was answered, text by text."""

    session: Asking
    key: str
    api: Any
    """OpenAI's client; its types are stricter than what is asked here, hence Any."""
    claude: Any
    """Anthropic's."""
    told: list[str] = field(factory=list)

    @classmethod
    @asynccontextmanager
    async def of(cls, session: Asking, url: str, key: str) -> AsyncIterator[Agent]:
        """Yield one with connections of its own."""
        http = openai.DefaultAsyncHttpxClient(verify=False), anthropic.DefaultAsyncHttpxClient(verify=False)
        base = url.removesuffix("/v1")
        async with (
            openai.AsyncOpenAI(base_url=url, api_key=key, http_client=http[0], max_retries=0) as api,
            anthropic.AsyncAnthropic(base_url=base, api_key=key, http_client=http[1], max_retries=0) as claude,
        ):
            yield cls(session, key, api, claude)

    async def chat(self, messages: list[Any], **more: Any) -> str:
        """Ask, and put the answer into the history."""
        answer = await self.api.chat.completions.create(model="m", messages=messages, **more)
        self.told += (texts := [choice.message.content for choice in answer.choices])
        messages.append({"role": "assistant", "content": texts[-1]})
        return str(texts[-1])

    async def asking_for_ever(self, messages: list[Any], **more: Any) -> asyncio.Task[str]:
        """Return a request that will not be answered, once the fleet has it."""
        while not self.session.begun.locked():
            await self.session.begun.acquire()
        asking = asyncio.create_task(self.chat([*messages, {"role": "user", "content": "Z"}], **more))
        await self.session.begun.acquire()
        return asking


def said(name: str, text: str) -> Any:
    return {"role": "user", "content": f"{name} {text}"}


async def talks(agent: Agent, name: str) -> None:
    """Three turns, the third streamed."""
    messages: list[Any] = [said(name, "one")]
    for text in ("two", "three"):
        await agent.chat(messages)
        messages.append(said(name, text))
    stream = await agent.api.chat.completions.create(model="m", messages=messages, stream=True)
    agent.told.append("".join([chunk.choices[0].delta.content or "" async for chunk in stream]))


async def chooses(agent: Agent, name: str) -> None:
    """Three answers to one question, of which one is gone on with; then two streamed side by side."""
    messages: list[Any] = [said(name, "choose")]
    await agent.chat(messages, n=3)
    await agent.chat([*messages, said(name, "go on")])
    stream = await agent.api.completions.create(model="m", prompt=name, n=2, stream=True)
    parts: Counter[int] = Counter()
    made = ["", ""]
    async for chunk in stream:
        made[chunk.choices[0].index] += chunk.choices[0].text
        parts[chunk.choices[0].index] += 1
    agent.told += made


async def has_helpers(agent: Agent, name: str) -> None:
    """Conversations of its own at the same time, one by Anthropic's client, one by responses that go on."""

    async def anthropics() -> None:
        messages = [said(name, "help")]
        for _ in range(2):
            async with agent.claude.messages.stream(model="m", max_tokens=99, messages=messages) as stream:
                last = await stream.get_final_message()
            agent.told.append(last.content[0].text)
            messages += [{"role": "assistant", "content": last.content}, said(name, "more")]

    async def responses() -> None:
        first = await agent.api.responses.create(model="m", input=f"{name} respond")
        second = await agent.api.responses.create(model="m", input="and on", previous_response_id=first.id)
        agent.told += [first.output_text, second.output_text]

    await asyncio.gather(agent.chat([said(name, "alone")]), anthropics(), responses())


async def goes_away(agent: Agent, name: str) -> None:
    """In the middle of a request, of a stream before its first token, and of one that was pinged; asks again."""
    for stream in (False, True):
        asking = await agent.asking_for_ever([said(name, "on")], stream=stream)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
    await agent.chat([said(name, "again")])


async def is_over(agent: Agent, name: str) -> None:
    """Its time is over while it asks."""
    messages = [said(name, "short")]
    await agent.chat(messages)
    asking = await agent.asking_for_ever(messages)
    asking.add_done_callback(lambda task: task.exception())  # nobody hears what it is told
    raise TimeoutError


KINDS: Sequence[Callable[[Agent, str], Awaitable[None]]] = (talks, chooses, has_helpers, goes_away, is_over)


@define(eq=False)
class Finished:
    agent: Agent
    trajectories: tuple[Trajectory, ...]
    failure: BaseException | None


def trained(trajectories: Sequence[Trajectory]) -> list[Token]:
    """Return each token on a mask with all that stands before it, its log-prob and its version."""
    found: list[Token] = []
    for made in trajectories:
        ids, mask = made.input_ids.tolist(), made.loss_mask.tolist()
        logprobs = [round(value, 5) for value in made.logprobs.tolist()]
        columns = (ids, logprobs, made.versions.tolist())
        found += [(tuple(ids[:t]), *each) for t, each in enumerate(zip(*columns, strict=True)) if mask[t]]
    return sorted(found)


def generated(turns: Sequence[tuple[GenerationRequest, Generation]]) -> list[Token]:
    """Return the same of what the fleet gave to a session."""
    found: list[Token] = []
    for request, made in turns:
        versions = [span.version for span in made.version_spans for _ in range(span.start, span.stop)]
        for t, each in enumerate(zip(made.output_ids, made.logprobs, versions, strict=True)):
            found.append(((*request.input_ids, *made.output_ids[:t]), *each))
    return sorted(found)


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def at_once(fleet: Fleet) -> list[Finished]:
    endpoint = Endpoint(patience_s=0.2)
    await endpoint.start()
    limits = SessionLimits(max_requests=10, concurrency=3)

    async def lives(number: int) -> Finished:
        session = fleet.open(f"s{number}")
        with endpoint.open(session, limits) as opened:
            async with Agent.of(session, endpoint.url, opened.key) as agent:
                with suppress(TimeoutError):
                    await KINDS[number % len(KINDS)](agent, f"s{number}")
        await session.close()
        return Finished(agent, opened.trajectories(float(number)), opened.failure)

    made = await asyncio.gather(*(lives(number) for number in range(NUM_SESSIONS)))
    async with aiohttp.ClientSession() as stranger:
        for finished in made:
            head = {"authorization": f"Bearer {finished.agent.key}"}
            async with stranger.post(f"{endpoint.url}/completions", json={"prompt": "who"}, headers=head) as answer:
                assert answer.status == 401
    await endpoint.close()
    return made


def test_two_hundred_sessions_at_once_have_each_their_own() -> None:
    """Tokens, log-probs and versions of each are what the fleet gave to it; no request, task or socket is left."""

    async def run() -> list[Finished]:
        fleet = Fleet()
        tokens = asyncio.create_task(fleet.run())
        try:
            made = await at_once(fleet)
        finally:
            tokens.cancel()
            with suppress(asyncio.CancelledError):
                await tokens
        assert fleet.num_running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return made

    before = num_open_files()
    made = asyncio.run(run())

    assert num_open_files() <= before
    assert len({finished.agent.key for finished in made}) == NUM_SESSIONS
    versions = Counter[int]()
    for number, finished in enumerate(made):
        turns = finished.agent.session.turns
        assert finished.failure is None
        assert {each.reward for each in finished.trajectories} == {float(number)}
        assert trained(finished.trajectories) == generated(turns)
        told = sorted(TOKENIZER.decode(list(answer.output_ids)) for _, answer in turns)
        assert sorted(finished.agent.told) == told
        versions.update(len(answer.version_spans) for _, answer in turns)
    assert versions[2] + versions[3] > NUM_SESSIONS, "answers went on through weight updates"
