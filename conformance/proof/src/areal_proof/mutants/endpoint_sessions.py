"""Broken endpoints: keys, rewards, limits, streams, errors and ends that are not as the contract has them.

Knows: how the second endpoint and its sessions are bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from areal_agentic.endpoint import SessionLimits
from areal_core.contract.errors import PromptTooLong
from areal_proof.mutants.rows import Original, after, before, breaking, put, row, then, within
from areal_proof.second.endpoint import SecondEndpoint
from areal_proof.second.endpoint_answers import error_body
from areal_proof.second.endpoint_bodies import Refused
from areal_proof.second.endpoint_session import SecondOpen

breaks = breaking("endpoint/second", SecondEndpoint)
breaks_session = breaking("endpoint/second", SecondEndpoint, part=("opens", SecondOpen))
_FORMS = ("chat", "completions", "messages", "responses")
_BAD = tuple(f"endpoint.errors.bad.{form}" for form in _FORMS)
_WORDS = tuple(f"endpoint.errors.words.{form}" for form in _FORMS)
_STREAMS = tuple(f"endpoint.streams.whole.{form}" for form in _FORMS)


@breaks("new_key", "endpoint.keys.unguessable")
def KeysAreCounted(self: SecondEndpoint) -> str:
    """Numbers its keys."""
    self.__dict__["count"] = self.__dict__.get("count", 0) + 1
    return f"second-key-of-a-session-of-this-run-{self.__dict__['count']:032d}"


@breaks("new_key", "endpoint.keys.unguessable", row="tenants")
def KeysAreReused(original: Original, self: SecondEndpoint) -> Any:
    """Gives out the key of a session that is over again."""
    given = self.__dict__.setdefault("given", [])
    free = [key for key in given if key not in self.sessions]
    if free:
        return free[0]
    given.append(original())
    return given[-1]


@breaks("session_of", "endpoint.keys.required")
def OneSessionNeedsNoKey(original: Original, self: SecondEndpoint) -> Any:
    """Takes any key while there is one session."""
    return next(iter(self.sessions.values())) if len(self.sessions) == 1 else original()


@breaks("session_of", "endpoint.keys.required")
def KeysInAnyCase(original: Original, self: SecondEndpoint, request: web.Request) -> Any:
    """Takes a key in other letters."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ").lower()
    found = [one for key, one in self.sessions.items() if key.lower() == given]
    return found[0] if found else original()


@breaks("session_of", "endpoint.keys.taken")
def BearersOnly(original: Original, request: web.Request) -> Any:
    """Takes no key of Anthropic's clients."""
    if "authorization" not in request.headers:
        raise Refused("no session has this key", 401)
    return original()


@breaks("session_of", "endpoint.rewards.own", row="tenants")
def RewardOfTheNewest(original: Original, self: SecondEndpoint, request: web.Request) -> Any:
    """Gives a reward to the session that was opened last."""
    mine = original()
    return list(self.sessions.values())[-1] if request.path.endswith("/reward") else mine


@breaks("reward_of", "endpoint.rewards.refused")
def AnyNumberIsAReward(body: Any) -> float:
    """Takes whatever Python takes for a number."""
    try:
        return float(body["reward"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("the reward is no number") from error


@breaks("body_of", *_BAD)
async def BodiesAreTrusted(request: web.Request) -> Any:
    """Takes every body for an object."""
    return json.loads(await request.read())


@breaks_session("prompt_of", "endpoint.errors.fuzzed")
def LooksAtTheFirstLetter(original: Original, wanted: Any) -> Any:
    """Looks at the first letter of every message, also where there is none."""
    assert all(one["content"][0] is not None for one in wanted.messages if one["role"] == "user")
    return original()


@breaks_session("ask", "endpoint.sessions.aborted", row="dead-peer")
async def AbortedIsKept(original: Original, wanted: Any) -> Any:
    """Goes on with a request whose client is gone, and keeps it."""
    return await asyncio.shield(asyncio.ensure_future(original(wanted)))


@breaks_session("ask", "endpoint.sessions.limit")
async def CountsNothing(original: Original, self: SecondOpen) -> Any:
    """Allows any number of requests."""
    self.num_asked = 0
    return await original()


@breaks_session("ask", "endpoint.sessions.limit_of_all")
async def CountsAnswers(original: Original, self: SecondOpen) -> Any:
    """Counts answers in place of requests."""
    self.num_asked = self.num_answers
    return await original()


@breaks_session("ask", "endpoint.sessions.aborted", row="token-fidelity")
async def AbortTakesTheLastAnswer(original: Original, self: SecondOpen) -> Any:
    """Forgets the newest answer when a client goes away."""
    try:
        return await original()
    except asyncio.CancelledError:
        del self.answers[-1:]
        raise


@breaks_session("ask", "endpoint.sessions.aborted")
async def AbortIsAnAnswer(original: Original, self: SecondOpen) -> Any:
    """Counts a request whose client went away as answered."""
    try:
        return await original()
    except asyncio.CancelledError:
        self.num_answers += 1
        raise


@breaks("body_of", *_BAD)
async def NestingIsAFailure(request: web.Request) -> Any:
    """Fails on lists in lists without end."""
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise Refused(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("the body is no object")
    return body


@breaks("forget", "endpoint.life.forgets", row="flat-memory")
def SessionsAreKept(original: Original, self: SecondEndpoint, opened: Any) -> None:
    """Keeps every session that is over."""
    self.__dict__.setdefault("over", []).append(opened)
    original()


@breaks("session_of", "endpoint.keys.unsaid")
def KeysAreTold(original: Original, self: SecondEndpoint) -> Any:
    """Tells a stranger which keys there are."""
    try:
        return original()
    except Refused as error:
        raise Refused(f"{error}, there are {', '.join(self.sessions)}", 401) from error


@breaks_session("ask", "endpoint.keys.responses", row="tenants")
async def ResponsesOfAll(original: Original, self: SecondOpen) -> Any:
    """Goes on from responses of other sessions."""
    shared = type(self).__dict__.get("shared")
    if shared is None:
        shared = {}
        type(self).shared = shared  # type: ignore[attr-defined]  # the mutant's own class
    self.responses = shared
    return await original()


@breaks_session("ask", "endpoint.sessions.limit")
async def LimitIsAFailure(original: Original, self: SecondOpen) -> Any:
    """Fails the episode of an agent that asks once too often."""
    try:
        return await original()
    except Refused as error:
        self.failure = error
        raise


@breaks_session("one", "endpoint.sessions.concurrency")
async def NoRoomNeeded(self: SecondOpen, prompt: Any, sampling: Any) -> Any:
    """Asks the engine at once, however many ask."""
    return await self.session.generate(prompt, sampling)


@breaks_session("one", "endpoint.sessions.concurrency")
async def RefusesInsteadOfWaiting(original: Original, self: SecondOpen) -> Any:
    """Refuses what has to wait."""
    if self.room.locked():
        raise Refused("too many at once", 429)
    return await original()


@breaks_session("keep", "endpoint.sessions.told")
def LastIsTheFirst(original: Original, self: SecondOpen) -> Any:
    """Keeps the first prompt and its answer as the newest."""
    kept, said = self.last, original()
    self.last = kept or self.last
    return said


@breaks_session("ask", "endpoint.errors.too_long")
async def TooLongIsTheFleets(original: Original) -> Any:
    """Takes a prompt that leaves no room for a failure of the fleet."""
    try:
        return await original()
    except PromptTooLong as error:
        raise RuntimeError(str(error)) from error


@breaks("events", *_STREAMS)
def LastPieceDropped(original: Original) -> Any:
    """Drops the last piece of a stream that says something."""
    made = original()
    telling = [at for at, event in enumerate(made) if _says(event)]
    return [event for at, event in enumerate(made) if not telling or at != telling[-1]]


def _says(event: str) -> bool:
    data = event.partition("data: ")[2]
    if data.startswith("[DONE]"):
        return False
    told: Any = json.loads(data)
    if told.get("type") == "content_block_delta" or str(told.get("type")).endswith("output_text.delta"):
        return True
    return any(one.get("text") or one.get("delta", {}).get("content") for one in told.get("choices", ()))


@breaks("start", "endpoint.life.start")
async def StartsAnew(original: Original, self: SecondEndpoint) -> None:
    """Listens at another port when it is started again."""
    self.runner = None
    await original()


@breaks("start", "endpoint.life.close")
async def TaskIsLeft(original: Original, self: SecondEndpoint) -> None:
    """Leaves a task of its own behind."""
    await original()
    self.__dict__["watching"] = asyncio.create_task(asyncio.Event().wait(), name="watching")


@breaks("close", "endpoint.life.close", incident="slime#638", row="flat-memory")
async def PortIsLeftOpen(self: SecondEndpoint) -> None:
    """Ends its sessions and goes on listening."""
    for one in self.sessions.values():
        one.end()


@breaks("close", "endpoint.life.in_flight", row="dead-peer")
async def CloseWaits(original: Original, self: SecondEndpoint) -> None:
    """Waits for what is in flight before it closes."""
    running = [asking for one in self.sessions.values() for asking in one.running]
    if running:
        await asyncio.wait(running)
    await original()


ROWS = breaks.rows(
    row("KeyStaysOpen", "Answers a key whose session is over.", "endpoint.keys.closed",
        forget=lambda opened: opened.end()),
    row("LateRequestsGoOn", "Lets requests of a session that is over go on.", "endpoint.keys.closed", row="dead-peer",
        forget=lambda self, opened: self.sessions.pop(opened.key, None)),
    row("AnyPathIsBad", "Calls a path that is none a bad request.", "endpoint.errors.paths",
        refused=lambda original, path, why, status: original(path, why, 400 if status == 404 else status)),
    row("ReasonsUntold", "Does not say why it refuses.", *_BAD,
        refused=lambda original, path, status: original(path, "", status)),
    row("KindsUntold", "Does not name what kind of thing went wrong.", *_WORDS,
        refused=lambda path, why, status: web.json_response(error_body(path, why, ""), status=status)),
    row("OneShapeForAll", "Refuses Anthropic's requests in OpenAI's words.", "endpoint.errors.words.messages",
        refused=lambda original, path, why, status: original("chat/completions", why, status)),
    row("FailureSwallowed", "Leaves it to the agent to tell of a failure of the fleet.", "endpoint.errors.fleet",
        incident="NeMo-RL#3589", row="failed-is-typed",
        failed=lambda self, path, error: self.refused(path, str(error), 503)),
    row("FailureIsTheRequests", "Calls a failure of the fleet a bad request.", "endpoint.errors.fleet",
        row="failed-is-typed",
        failed=lambda original, self, path, opened, error: (original(), self.refused(path, str(error), 400))[1]),
    row("ListensEverywhere", "Listens on every address of the machine.", "endpoint.life.loopback",
        host="0.0.0.0"),
    row("AnyBodyIsRead", "Reads a body of any size.", "endpoint.errors.large", row="flat-memory",
        largest=0),
    row("SmallBodiesOnly", "Refuses a body of a megabyte.", "endpoint.errors.large",
        largest=2**20),
    row("UnreadIsIgnored", "Ignores what it cannot do.", "endpoint.errors.unable",
        body_of=after(lambda result: {key: value for key, value in result.items() if key not in ("response_format",
            "text", "echo", "suffix")})),
    row("PreviousIsIgnored", "Begins anew where a request names a response to go on from.", "endpoint.keys.responses",
        body_of=after(lambda result: {key: value for key, value in result.items() if key != "previous_response_id"})),
    row("AnswersEndWithTheSession", "Forgets what was said when a session is over.", "endpoint.sessions.apart",
        forget=then(lambda opened: opened.answers.clear())),
    row("CloseOnce", "Cannot be closed again.", "endpoint.life.close",
        close=before(lambda self: None if self.runner else RuntimeError("it is closed"))),
)  # fmt: skip

SESSION_ROWS = breaks_session.rows(
    row("FailureForgotten", "Forgets a failure of the fleet when it answers again.", "endpoint.errors.fleet",
        row="failed-is-typed",
        keep=then(lambda self: setattr(self, "failure", None))),
    row("CountsChoices", "Counts answers, not requests.", "endpoint.sessions.told",
        keep=then(lambda self, made: setattr(self, "num_answers", self.num_answers + len(made) - 1))),
    row("FirstRewardCounts", "Keeps the first reward that it was told.", "endpoint.rewards.last",
        tell=lambda self, reward: setattr(self, "reward", reward) if self.reward is None else None),
    row("ZeroIsNoReward", "Takes a reward of zero for none.", "endpoint.rewards.last", row="failed-is-typed",
        tell=lambda self, reward: setattr(self, "reward", reward or None)),
    row("RestartsUncounted", "Does not count conversations that begin anew.", "endpoint.sessions.restarts",
        "endpoint.tokens.thoughts",
        begun_anew=lambda: None),
    row("NewIsARestart", "Counts every new conversation as one that begins anew.", "endpoint.sessions.restarts",
        begun_anew=lambda original, self, wanted: original() or ("edited" if self.answers and len(wanted.messages) == 1
            else None)),
    row("OneRequestMore", "Allows one request more.", "endpoint.sessions.limit",
        ask=within(lambda self: put(self, limits=SessionLimits(max_requests=self.limits.max_requests + 1)))),
    row("OneAtATimeMore", "Generates one more at once.", "endpoint.sessions.concurrency",
        __attrs_post_init__=then(lambda self: setattr(self, "room", asyncio.Semaphore(self.limits.concurrency + 1)))),
    row("CalledRewardsAddUp", "Adds up the rewards that it is told.", "endpoint.rewards.last",
        tell=lambda self, reward: setattr(self, "reward", (self.reward or 0.0) + reward)),
    row("RewardEndsWithTheSession", "Forgets the reward when the session is over.", "endpoint.rewards.last",
        row="failed-is-typed",
        end=then(lambda self: setattr(self, "reward", None))),
    row("DiscountByTrajectories", "Discounts a trajectory for each that begins after it.", "endpoint.rewards.discount",
        trajectories=lambda original, self, reward, turn_discount: tuple(self.joined(line, reward * turn_discount
            ** (len(self.lines()) - 1 - number)) for number, line in enumerate(self.lines()))),
    row("DiscountFromTheFirst", "Discounts a trajectory for each request before its end.", "endpoint.rewards.discount",
        trajectories=lambda original, self, reward, turn_discount: tuple(self.joined(line, reward * turn_discount
            ** (line[-1].request - 1)) for line in self.lines())),
    row("NoDiscount", "Takes a discount and does not apply it.", "endpoint.rewards.discount",
        trajectories=lambda original, reward: original(reward)),
)  # fmt: skip
