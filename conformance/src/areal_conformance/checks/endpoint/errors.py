"""What is wrong with a request is told to the agent; what is wrong with the fleet is the episode's failure.

Knows: bodies that are wrong in every form of asking, and how a fleet fails.
Does not know: in which words an endpoint refuses.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from areal_agentic.endpoint import SessionLimits
from areal_conformance.benches.endpoint import EndpointBench, Opened, Told, answer, text_of, trained
from areal_conformance.benches.endpoint_forms import CHAT, FORMS, MESSAGES, RESPONSES, TEXT, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.benches.workflow import Asked
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, GenerationFailed, NoReplica, PromptTooLong

_ERRORS = "endpoint#errors"
_PROPERTIES: Json = {"ab": {"type": "integer"}, "ba": {"enum": ["er", "stone"]}}


def _body(form: Form, **more: Any) -> Json:  # Any: JSON
    return {**form.body(form.question("stone?")), **more}


def _wrong(form: Form) -> Iterator[tuple[str, Any]]:  # Any: JSON, or bytes
    """Yield bodies that no server of this API could answer."""
    broken = {"no JSON": b"{", "no object": b"[1]", "nothing": b"", "a text": b'"stone?"', "no UTF-8": b"\xff"}
    yield from broken.items()
    yield "lists in lists without end", b"[" * 100_000 + b"]" * 100_000
    yield "a number of 5000 digits", b'{"model": ' + b"1" * 5000 + b"}"
    yield "no history", {"model": "policy", **form.always}
    yield from _each(form, form.history, None, 3, {"a": 1}, [])
    yield from _each(form, form.limit, -1, 0, "many", 1.5)
    if form is not TEXT:
        yield from _each(form, "tools", 3, [3], [{"type": "function"}], "add")
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        oracle, number = {"role": "oracle", "content": "ab"}, {"role": "user", "content": 3}
        shown = {"role": "user", "content": [picture]}
        yield from _each(form, form.history, *([one] for one in (oracle, number, 3, {"role": "user"}, shown)))
    if form in (CHAT, TEXT):
        yield from _each(form, "n", 0, -1, "two", 100_000)
    if form is TEXT:
        yield "token ids that are none", _body(form, prompt=[-1, 10**9])
    if form is CHAT:
        calls = [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{"}}]
        asked = {"role": "assistant", "content": None, "tool_calls": calls}
        yield "arguments that are no JSON", _body(form, messages=[CHAT.asked("ab"), asked, CHAT.asked("ab")])


def _each(form: Form, name: str, *values: Any) -> Iterator[tuple[str, Json]]:  # Any: JSON
    for value in values:
        yield f"{name} {value!r}", _body(form, **{name: value})


@family("endpoint.errors.bad.{form}", FORMS, level=Level.SINGLE, law=8, spec=_ERRORS)
async def bad(bench: EndpointBench, form: Form) -> None:
    """What is wrong with a request by {form} is 4xx with a reason, never 500, and leaves nothing."""
    async with bench.opened(form) as opened:
        for what, body in _wrong(form):
            told = await opened.agent.post(form.path, body)
            shown = f"{form.path} with {what} is answered with {told.status}: {str(told.body)[:200]}"
            expect(400 <= told.status < 500 and told.status != 422, shown)
            expect(told.reason, f"{shown}, which is no reason")
            expect(opened.session.begun == 0, f"{form.path} with {what} reached the engine")
        expect(opened.open.failure is None, f"a bad request is a failure of the fleet: {opened.open.failure!r}")
        told = await opened.agent.post(form.path, _body(form))
        expect(told.status == 200, f"after bad requests a good one is answered with {told.status}: {told.reason}")
        trained(opened)


@check("endpoint.errors.fuzzed", level=Level.SINGLE, law=8, spec=_ERRORS, deadline_s=120.0)
async def fuzzed(bench: EndpointBench) -> None:
    """Requests changed at random are answered, or refused with a reason; never 500, and nothing of them is crossed."""
    draw = Random("endpoint/fuzzed")
    for form in FORMS.values():
        async with bench.opened(form) as opened:
            for _ in range(60):
                body = _body(form, temperature=1.0, stream=False, stop=["ba"], tools=[], metadata={"a": "b"})
                for _ in range(draw.randint(1, 2)):
                    inside = body.get(form.history)
                    _spoil(draw, inside if isinstance(inside, list) and draw.random() < 0.6 else body)
                told = await opened.agent.post(form.path, body)
                shown = f"{form.path} with {json.dumps(body)[:300]} is answered with {told.status}"
                expect(told.status < 500, f"{shown}: {str(told.body)[:200]}")
                expect(told.status < 400 or told.reason, f"{shown} without a reason: {str(told.body)[:200]}")
            expect(opened.open.failure is None, f"an odd request is a failure of the fleet: {opened.open.failure!r}")
            trained(opened)


_ODD: tuple[Any, ...] = (  # Any: JSON
    None,
    True,
    -1,
    0,
    1e309,
    3.5,
    "",
    "ab",
    [],
    [[]],
    {},
    {"type": "text"},
    [None],
    "\ud83d",
    2**70,
    [{"role": "user"}],
)


def _spoil(draw: Random, body: Any) -> None:  # Any: JSON
    """Put something odd somewhere into a body, at whatever depth."""
    keys = list(body) if isinstance(body, dict) else list(range(len(body)))
    if not keys:
        return
    key = draw.choice(keys)
    if isinstance(body[key], (dict, list)) and body[key] and draw.random() < 0.9:
        _spoil(draw, body[key])
    elif isinstance(body, dict) and draw.random() < 0.2:
        del body[key]
    else:
        body[key] = copy.deepcopy(draw.choice(_ODD))


_KINDS = {
    400: ("invalid_request_error",),
    401: ("authentication_error",),
    429: ("rate_limit_error",),
    503: ("api_error", "overloaded_error"),
}
"""Anthropic's names of what went wrong, which its clients look at."""


@family("endpoint.errors.words.{form}", FORMS, level=Level.SINGLE, law=8, spec=_ERRORS)
async def words(bench: EndpointBench, form: Form) -> None:
    """A refusal by {form} has the shape that clients of this API read, a name of its kind and the reason in it."""
    good, made = _body(form), dict[int, Told]()
    async with bench.opened(form) as opened:
        agent = opened.agent
        made[400] = await agent.post(form.path, _body(form, **{form.limit: -1}))
        made[401] = await agent.post(form.path, good, authorization="Bearer no-such-key", x_api_key="")
    limits = SessionLimits(max_requests=1)
    async with bench.opened(form, limits=limits, script=_failing_first(NoReplica("all are lost"))) as opened:
        made[503] = await opened.agent.post(form.path, good)
        made[429] = await opened.agent.post(form.path, good)
    for status, told in made.items():
        expect(told.status == status, f"{form.path} is answered with {told.status}, not {status}: {told.body}")
        error = told.body.get("error") if isinstance(told.body, dict) else None
        kind = error.get("type") if isinstance(error, dict) else None
        shown = f"{form.path}: {status} is told as {str(told.body)[:200]}"
        expect(told.reason and isinstance(kind, str) and kind, f"{shown}, without a reason or a name of its kind")
        if form is MESSAGES:
            expect(told.body.get("type") == "error", f"{shown}, which Anthropic's clients know by the type error")
            expect(kind in _KINDS[status], f"{shown}; Anthropic calls that {' or '.join(_KINDS[status])}")


@check("endpoint.errors.paths", level=Level.SINGLE, law=8, spec=_ERRORS)
async def paths(bench: EndpointBench) -> None:
    """A path that is none is 404 and another method 405, each with a reason; models are listed."""
    async with bench.opened() as opened:
        agent = opened.agent
        told = await agent.post("/embeddings", {"input": "ab"})
        expect(told.status == 404 and told.reason, f"a path that is none is answered with {told.status}: {told.body}")
        told = await agent.get("/chat/completions")
        expect(
            told.status == 405 and told.reason, f"GET of a path to post to is answered with {told.status}: {told.body}"
        )
        told = await agent.get("/models")
        named = told.status == 200 and [one.get("id") for one in told.body.get("data", ())]
        expect(named, f"the models are answered with {told.status}: {told.body}")


@check("endpoint.errors.fleet", level=Level.SINGLE, law=5, spec=_ERRORS)
async def fleet(bench: EndpointBench) -> None:
    """A failure of the fleet is 503 and the session's failure, also where the agent swallows it and goes on."""
    for error in (NoReplica("every replica is out of service"), GenerationFailed("it was lost"), ValueError("a bug")):
        for form in (CHAT, RESPONSES, MESSAGES, TEXT):
            async with bench.opened(form, script=_failing_first(error)) as opened:
                told = await opened.agent.post(form.path, _body(form))
                if isinstance(error, ArealError):
                    expect(told.status == 503 and told.reason, f"{error!r} is told by {form.name} as {told}")
                else:
                    expect(told.status >= 500, f"{error!r} is told by {form.name} as {told}")
                told = await opened.agent.post(form.path, _body(form))
                expect(told.status == 200, f"after a failure the fleet answers again, and the agent is told {told}")
                _failed(opened, error)
            _failed(opened, error)
            trained(opened)


def _failing_first(error: BaseException) -> Any:  # Any: a script of a session
    return lambda turn: answer(turn) if turn else error


def _failed(opened: Opened, error: BaseException) -> None:
    seen = opened.open.failure
    expect(
        seen is not None, f"the fleet failed with {error!r}, and the session has no failure: the agent may swallow it"
    )
    expect(str(error).partition("\n")[0] in str(seen), f"the fleet failed with {error!r}, the session tells {seen!r}")


@check("endpoint.errors.too_long", level=Level.SINGLE, law=5, spec=_ERRORS)
async def too_long(bench: EndpointBench) -> None:
    """A prompt that leaves no room is the request's fault: 400, and the episode goes on with what was answered."""

    def script(turn: int) -> Any:  # Any: as a script of a session
        return PromptTooLong("the prompt leaves no room") if turn == 1 else answer(turn)

    async with bench.opened(script=script) as opened:
        await opened.agent.say("stone?")
        before = [*opened.agent.history]
        opened.agent.history.append(CHAT.asked("ab ba?"))
        told = await opened.agent.ask()
        expect(told.status == 400 and told.reason, f"a prompt that is too long is told as {told}")
        expect(opened.open.failure is None, f"a prompt that is too long is a failure: {opened.open.failure!r}")
        opened.agent.history = before
        await opened.agent.say("well?")
        expect(opened.open.num_answers == 2, f"2 requests were answered, num_answers is {opened.open.num_answers}")
        made = trained(opened)
        expect(len(made) == 1, f"a conversation beside a request that was refused became {len(made)} trajectories")


@check("endpoint.errors.large", level=Level.SINGLE, law=9, spec=_ERRORS)
async def large(bench: EndpointBench) -> None:
    """A body of 64 MiB is 413 with a reason, one of 8 MiB is read, and the session goes on."""
    async with bench.opened() as opened:
        body = _body(CHAT, metadata={"a": "b" * (8 << 20)})
        told = await opened.agent.post(CHAT.path, body)
        expect(told.status == 200, f"a body of 8 MiB is answered with {told.status}: {told.reason}")
        told = await opened.agent.post(CHAT.path, _body(CHAT, metadata={"a": "b" * (64 << 20)}))
        expect(told.status == 413 and told.reason, f"a body of 64 MiB is answered with {told.status}: {told.reason}")
        expect(opened.open.failure is None, f"a body that is too large is a failure: {opened.open.failure!r}")
        await opened.agent.say("well?")
        trained(opened)


@check("endpoint.errors.unable", level=Level.SINGLE, law=8, spec=_ERRORS)
async def unable(bench: EndpointBench) -> None:
    """What would make another answer is done or refused with a reason, never ignored."""
    schema = {"type": "object", "properties": _PROPERTIES}
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    begun = [CHAT.asked("stone?"), CHAT.said("It is ab")]
    add = {"name": "add", "description": "To add.", "parameters": schema}
    cases: list[tuple[str, Form, Json, Callable[[Told, Asked], bool]]] = [
        ("an answer that was begun", CHAT, {"messages": begun}, _goes_on_with("It is ab")),
        ("an answer that was begun", MESSAGES, {"messages": begun}, _goes_on_with("It is ab")),
        ("a format of the answer", CHAT, {"response_format": named}, _structured),
        ("a format of the answer", RESPONSES, {"text": {"format": {**named, "schema": schema}}}, _structured),
        *(
            (f"tools, and {choice!r}", form, {"tools": [form.tool(add)], "tool_choice": choice}, done)
            for form, choice, done in _choices()
        ),
        *(
            (what, form, more, _never)
            for what, form, more in (
                ("a stored prompt", RESPONSES, {"prompt": {"id": "pmpt_1"}}),
                ("a conversation that is stored", RESPONSES, {"conversation": "conv_1"}),
                ("an item of the provider's own", RESPONSES, {"input": [_SEARCHED, RESPONSES.asked("stone?")]}),
                ("a tool of the provider's own", RESPONSES, {"tools": [{"type": "web_search"}]}),
                ("a tool of the provider's own", MESSAGES, {"tools": [_SEARCH]}),
            )
        ),
        ("two prompts", TEXT, {"prompt": ["stone?", "ab?"]}, lambda told, _: len(told.body["choices"]) == 2),
        ("what else was likely", CHAT, {"logprobs": True, "top_logprobs": 2}, _likely),
        ("functions", CHAT, {"functions": [add]}, lambda _told, asked: '"add"' in text_of(asked.input_ids)),
        ("echo", TEXT, {"echo": True}, lambda told, _: TEXT.text(told.body).startswith("stone?")),
        ("suffix", TEXT, {"suffix": "ab"}, _never),
    ]
    for what, form, more, done in cases:
        async with bench.opened(form) as opened:
            told = await opened.agent.post(form.path, _body(form, **more))
            if told.status == 200:
                expect(done(told, opened.session.asked[0]), f"{form.path}: {what} is ignored: {str(told.body)[:200]}")
            else:
                shown = f"{form.path}: {what} is answered with {told.status}: {str(told.body)[:200]}"
                expect(400 <= told.status < 500 and told.reason, shown)


def _choices() -> Iterator[tuple[Form, Any, Callable[[Told, Asked], bool]]]:  # Any: JSON
    """Yield what may be said of tools that are offered, and whether it was done: none may be called, or one must."""
    for form, none, some in (
        (CHAT, "none", "required"),
        (RESPONSES, "none", "required"),
        (MESSAGES, {"type": "none"}, {"type": "any"}),
    ):
        yield form, none, lambda _told, asked: '"add"' not in text_of(asked.input_ids)
        yield form, some, lambda told, _asked, form=form: bool(form.calls(told.body))  # type: ignore[misc]


_SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
_SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def _never(_told: Told, _asked: Asked) -> bool:
    """Tell that an answer does not show that it was done."""
    return False


def _likely(told: Told, _asked: Asked) -> bool:
    """Tell whether each token of an answer stands beside others."""
    of_tokens = (told.body["choices"][0].get("logprobs") or {}).get("content") or ()
    return bool(of_tokens) and all(one.get("top_logprobs") for one in of_tokens)


def _goes_on_with(text: str) -> Callable[[Told, Asked], bool]:
    return lambda _told, asked: text_of(asked.input_ids).endswith(text)


def _structured(_told: Told, asked: Asked) -> bool:
    """Tell whether the engine was asked for what the schema says, not for any object."""
    kept = json.loads(asked.structure.text) if asked.structure else {}
    return isinstance(kept, dict) and kept.get("properties") == _PROPERTIES
