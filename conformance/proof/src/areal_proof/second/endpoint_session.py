"""What stands behind a key of the second endpoint: who said what, in which tokens.

What was said is found again by what it says: the conversation so far, written as JSON. Trajectories are put together
when they are asked for.

Knows: what goes on from what, limits, what an episode is given.
Does not know: HTTP, keys, or fields of bodies (`endpoint_bodies`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field

from areal_agentic.endpoint import Export, SessionLimits
from areal_agentic.renderer import BoundRenderer
from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.contract.workflow import Session
from areal_proof.second.endpoint_answers import Said
from areal_proof.second.endpoint_bodies import Json, Refused, Wanted, need


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
    openings: set[str] = field(factory=set)
    """What was said before each first answer."""
    restarts: Counter[str] = field(factory=Counter)
    responses: dict[str, tuple[Json, ...]] = field(factory=dict)
    """Id of a response -> the conversation with it."""
    running: set[asyncio.Future[Any]] = field(factory=set)
    room: asyncio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.room = asyncio.Semaphore(self.limits.concurrency)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return what an episode's metrics hold of it."""
        reasons = {f"agent/restarted/{reason}": count for reason, count in self.restarts.items()}
        counts = {"agent/requests": self.num_answers, "agent/trajectories": len(self.lines())}
        return {**counts, "agent/restarted": self.restarts.total(), **reasons}

    async def ask(self, wanted: Wanted) -> tuple[tuple[int, ...], list[Said]]:
        """Answer one request, and keep it."""
        if self.num_asked >= self.limits.max_requests:
            raise Refused(f"all {self.limits.max_requests} requests of this session were made", 429)
        if wanted.previous:
            need(wanted.previous in self.responses, f"this session has no response {wanted.previous}")
            own, said = wanted.messages[: wanted.instructions], wanted.messages[wanted.instructions :]
            wanted = evolve(wanted, messages=(*own, *self.responses[wanted.previous], *said))
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
        key = self.known_as(begin, wanted.tools)
        before = self.known.get(self.named(key, begin[-1]), self.known.get(key))
        if before is None or not rest:
            return None
        prompt, output, history = before
        bridge = self.renderer.bridge(history, output, rest, tools=wanted.tools)
        return None if bridge is None else (*prompt, *output, *bridge)

    def known_as(self, messages: Sequence[Json], tools: Sequence[Json]) -> str:
        """Return what a conversation is known by."""
        return told(messages, tools)

    def named(self, key: str, message: Json) -> str:
        """Return what a conversation is known by whose last answer makes the calls that it names."""
        return key + "".join(str(call.get("id")) for call in message.get("tool_calls") or ())

    def begun_anew(self, wanted: Wanted) -> str | None:
        """Return why a conversation that was answered here begins anew; None for others."""
        places = [at for at, one in enumerate(wanted.messages) if one["role"] == "assistant"]
        if not places or self.went_on(wanted) is not None:
            return None
        if self.known_as(wanted.messages[: places[-1] + 1], wanted.tools) in self.known:
            return "unbridged"
        opening = self.known_as(wanted.messages[: places[0]], wanted.tools)
        return "edited" if opening in self.openings else None

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
        reason = self.begun_anew(wanted)
        self.restarts += Counter([reason] if reason else [])
        places = [at for at, one in enumerate(wanted.messages) if one["role"] == "assistant"]
        self.openings.add(self.known_as(wanted.messages[: places[0] if places else None], wanted.tools))
        said = [self.read(one, wanted) for one in made]
        for one in said:
            self.answers.append(Answered(prompt_ids=prompt, made=one.generation, request=self.num_answers))
            if wanted.prompt is None:
                key = self.known_as((*wanted.messages, one.message), wanted.tools)
                self.known[key] = (prompt, one.generation.output_ids, wanted.messages)
                self.known[self.named(key, one.message)] = self.known[key]
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
        pieces, stop = self.pieces(made.output_ids), None
        ended = made.stop_reason is StopReason.STOP
        text = "".join(pieces[:-1] if ended and made.output_ids[-1] in self.renderer.stop_token_ids else pieces)
        if ended:
            text, stop = self.up_to(text, wanted.stops)
            answer = evolve(answer, content=self.up_to(answer.content, wanted.stops)[0])
        return Said(generation=made, answer=answer, pieces=pieces, calls=tuple(calls), text=text, stop=stop)

    def up_to(self, text: str, stops: Sequence[str]) -> tuple[str, str | None]:
        """Return a text up to the first of the stops in it, and which one that is."""
        found = sorted((text.index(stop), stop) for stop in stops if stop in text)
        return (text[: found[0][0]], found[0][1]) if found else (text, None)

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
        columns: dict[str, torch.Tensor] = {}
        for one in line:
            start = len(one.prompt_ids)
            stop = start + len(one.made.output_ids)
            mask[start:stop] = True
            logprobs[start:stop] = torch.tensor(one.made.logprobs)
            for span in one.made.version_spans:
                versions[start + span.start : start + span.stop] = span.version
            for name, values in one.made.token_extras.items():
                absent = -1 if name == ROUTED_EXPERTS else 0
                columns.setdefault(name, values.new_full((len(ids), *values.shape[1:]), absent))[start:stop] = values
        return Trajectory(
            input_ids=ids,
            loss_mask=mask,
            logprobs=logprobs,
            versions=versions,
            reward=reward,
            stop_reason=line[-1].made.stop_reason,
            token_extras=columns,
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
