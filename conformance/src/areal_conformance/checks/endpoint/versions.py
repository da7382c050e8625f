"""What the engine stamped stays: versions and log-probs of every token, and the sampling they are of.

Knows: updates inside of an answer, and fields of requests that must change nothing.
Does not know: how weights are updated.
"""

from __future__ import annotations

from itertools import accumulate

from attrs import evolve

from areal_conformance.benches.endpoint import EndpointBench, answer, said, trained
from areal_conformance.benches.endpoint_forms import CHAT, MESSAGES, NEWER_LIMIT, RESPONSES, TEXT, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.benches.workflow import SAMPLING
from areal_conformance.benches.workflow_tokens import versions_of
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.inference import VersionSpan

_SESSIONS = "endpoint#sessions"


@check("endpoint.versions.stamped", level=Level.SINGLE, law=1, spec="endpoint#versions")
async def stamped(bench: EndpointBench) -> None:
    """Across updates inside of an answer each token has the version that computed it, and its own log-prob."""
    async with bench.opened(script=lambda turn: _spread(turn)) as opened:
        for question in ("stone?", "ab ba?", "well?"):
            await opened.agent.say(question)
        (made,) = trained(opened)
        seen = made.versions[made.loss_mask].tolist()
        given = [asked.generation for asked in opened.session.asked if asked.generation is not None]
        due = [version for one in given for version in versions_of(one)]
        expect(seen == due, f"the engine stamped {due}, trained on are {seen}")


def _spread(turn: int) -> object:
    """Return an answer whose first token alone is of an earlier version, and whose last one is of a later one."""
    made = answer(turn)
    length, first = len(made.output_ids), 4 * turn
    cuts = ((0, 1, first), (1, length - 1, first + 2), (length - 1, length, first + 3))
    spans = [VersionSpan(start=start, stop=stop, version=version) for start, stop, version in cuts]
    return answer(turn, version_spans=spans)


@check("endpoint.versions.logprobs", level=Level.SINGLE, law=1, spec="endpoint#versions")
async def logprobs(bench: EndpointBench) -> None:
    """An agent that asks for log-probs is told those of the engine, one for each token, also if alone."""
    asking: tuple[tuple[Form, Json], ...] = (
        (CHAT, {"logprobs": True}),
        (TEXT, {"logprobs": 1}),
        (TEXT, {"logprobs": 0}),
        (RESPONSES, {"include": [_INCLUDED]}),
    )
    for form, more in asking:
        async with bench.opened(form) as opened:
            told = await opened.agent.post(form.path, form.body(form.question("stone?"), **more))
            if form is RESPONSES and told.status == 400 and told.reason:
                continue
            said(form, told, form.name)
            made = opened.session.asked[0].generation
            assert made is not None
            seen = _told(form, told.body)
            expect(seen == list(made.logprobs), f"the engine gave {list(made.logprobs)}, the agent is told {seen}")
            if form is TEXT:
                tokens = told.body["choices"][0]["logprobs"].get("tokens")
                expect(len(tokens or ()) == len(seen), f"asked with {more}, {len(seen)} tokens are told as {tokens}")
            if form is TEXT and (inside := told.body["choices"][0]["logprobs"]).get("text_offset"):
                first = inside["text_offset"][0]  # counted from the answer or from the prompt, both are in use
                starts = list(accumulate(map(len, inside["tokens"]), initial=first))[:-1]
                expect(
                    inside["text_offset"] == starts, f"{inside['tokens']} are told to begin at {inside['text_offset']}"
                )


_INCLUDED = "message.output_text.logprobs"


def _told(form: Form, answer: Json) -> list[float]:
    """Return the log-probs of an answer that is not streamed."""
    if form is RESPONSES:
        parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        return [one["logprob"] for part in parts for one in part.get("logprobs") or ()]
    inside = answer["choices"][0]["logprobs"] or {}
    return [one["logprob"] for one in inside["content"]] if form is CHAT else list(inside["token_logprobs"])


@check("endpoint.versions.sampling", level=Level.SINGLE, law=1, spec=_SESSIONS)
async def sampling(bench: EndpointBench) -> None:
    """The run's sampling holds whatever a request says; it can only ask for fewer tokens, and for more stops."""
    loud = {"temperature": 0.1, "top_p": 0.2}
    for form, name in (
        (CHAT, CHAT.limit),
        (CHAT, NEWER_LIMIT),
        (RESPONSES, RESPONSES.limit),
        (MESSAGES, MESSAGES.limit),
    ):
        async with bench.opened(form) as opened:
            for limit, due in ((1, 1), (3, 3), (SAMPLING.max_new_tokens + 900, SAMPLING.max_new_tokens)):
                opened.agent.history = [form.asked("stone?")]
                said(form, await opened.agent.ask(**loud, **{name: limit}), form.name)
                used = opened.session.asked[-1].sampling or SAMPLING
                drawn = (used.temperature, used.top_p, used.top_k, used.seed)
                mine = (SAMPLING.temperature, SAMPLING.top_p, SAMPLING.top_k, SAMPLING.seed)
                expect(drawn == mine, f"{form.name}: the run draws with {mine}, the request was drawn with {drawn}")
                seen = used.max_new_tokens
                told = f"{form.name}: {name} {limit} of a run of {SAMPLING.max_new_tokens} is {seen}"
                expect(seen == due, told)
                kept = set(SAMPLING.stop_token_ids) <= set(used.stop_token_ids)
                expect(kept, f"{form.name}: the run stops at {SAMPLING.stop_token_ids}, this at {used.stop_token_ids}")
    own = evolve(SAMPLING, stop=("no",))
    async with bench.opened(sampling=own) as opened:
        opened.agent.history = [CHAT.asked("stone?")]
        said(CHAT, await opened.agent.ask(stop=["ba", "er"]), "stop")
        stops = (opened.session.asked[-1].sampling or own).stop
        told = "the agent stops at ba and er, the run at no"
        expect({"no", "ba", "er"} <= set(stops), f"{told}; the engine was told {stops}")
