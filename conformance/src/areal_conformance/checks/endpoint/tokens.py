"""What the engine was asked with and what it gave are the tokens trained on, turn by turn, whatever was said between.

Knows: conversations in every form of asking, and how they go on or begin anew.
Does not know: how an endpoint remembers them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

from areal_conformance.benches.conversations import Json
from areal_conformance.benches.endpoint import EndpointBench, answer, answered, grown, said, text_of, tokenizer, trained
from areal_conformance.benches.endpoint_forms import CHAT, DIALOGUES, FORMS, RESPONSES, TEXT, Form
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import Violation, expect
from areal_conformance.probes.tokenizers import END
from areal_core.contract.data import StopReason

_TOKENS = "endpoint#tokens"


@family("endpoint.tokens.exact.{form}", FORMS, level=Level.SINGLE, law=1, spec=_TOKENS)
async def exact(bench: EndpointBench, form: Form) -> None:
    """An answer asked for by {form} is told as its text, and trained on as the engine's own tokens."""
    for number, stop in enumerate((StopReason.STOP, StopReason.LENGTH, StopReason.STOP), start=1):
        made = answer(number, text=None if number < 3 else f"ab{words_apart()} ba", stop=stop)
        async with bench.opened(form, script=lambda _turn, made=made: made) as opened:
            agent = opened.agent
            question = "stone ab?"
            told = await agent.post(form.path, form.body(form.question(question)))
            seen = said(form, told, form.name)
            due = tokenizer().decode(made.output_ids, skip_special_tokens=True)
            expect(seen == due, f"the engine gave {due!r}, the agent reads {seen!r}")
            (asked,) = opened.session.asked
            expect(question in text_of(asked.input_ids), f"the policy was asked {text_of(asked.input_ids)!r}")
            trained(opened)


def words_apart() -> str:
    """Return words in which a tokenizer would merge letters and line breaks."""
    return "ba ab\n\nab er abba"


@family("endpoint.tokens.turns.{form}", DIALOGUES, level=Level.SINGLE, law=1, spec=_TOKENS)
async def turns(bench: EndpointBench, form: Form) -> None:
    """A conversation by {form} that grows is one trajectory: each prompt goes on from the tokens of the last answer."""
    async with bench.opened(form) as opened:
        for question in ("stone?", "ab ba?", "and \u4f60\u597d?", "well"):
            await opened.agent.say(question)
        grown(opened)
        made = trained(opened)
        expect(len(made) == 1, f"one conversation became {len(made)} trajectories")


@check("endpoint.tokens.cut", level=Level.SINGLE, law=1, spec=_TOKENS)
async def cut(bench: EndpointBench) -> None:
    """Behind an answer that was cut the conversation goes on from its tokens, closed as the template closes one."""
    async with bench.opened(script=lambda turn: answer(7 + turn, stop=StopReason.LENGTH)) as opened:
        for question in ("stone?", "ab ba?", "well"):
            await opened.agent.say(question)
        grown(opened)
        for before, asked in itertools.pairwise(opened.session.asked):
            assert before.generation is not None
            behind = asked.input_ids[len(before.input_ids) + len(before.generation.output_ids) :]
            expect(text_of(behind).startswith(END), f"behind a cut answer stands {text_of(behind)!r}")
        expect(len(trained(opened)) == 1, "one conversation became several trajectories")


@check("endpoint.tokens.spaced", level=Level.SINGLE, law=1, spec=_TOKENS)
async def spaced(bench: EndpointBench) -> None:
    """An answer that the agent keeps without the white space around it goes on with it, in the engine's tokens."""
    texts = (" ab ba ", "ba\n\n", "\nstone")
    async with bench.opened(script=lambda turn: answer(turn, text=texts[turn % 3])) as opened:
        for number in range(4):
            await opened.agent.say(f"stone {number}?")
            said_last = opened.agent.history[-1]
            opened.agent.history[-1] = {**said_last, "content": said_last["content"].strip()}
        grown(opened)
        expect(len(trained(opened)) == 1, "one conversation whose answers were trimmed became several trajectories")


@check("endpoint.tokens.ids", level=Level.SINGLE, law=1, spec=_TOKENS)
async def ids(bench: EndpointBench) -> None:
    """A prompt given as token ids is asked with those ids, and goes on where it begins with an earlier answer."""
    async with bench.opened(TEXT) as opened:
        prompt = [token for letter in "ab ba" for token in tokenizer().encode(letter)]
        for _ in range(3):
            told = await opened.agent.post(TEXT.path, {"model": "policy", "prompt": prompt})
            said(TEXT, told, "a prompt of token ids")
            asked = opened.session.asked[-1]
            expect(list(asked.input_ids) == prompt, f"asked with {prompt}, the engine was given {asked.input_ids}")
            assert asked.generation is not None
            prompt = [*prompt, *asked.generation.output_ids, *tokenizer().encode("\nba")]
        made = trained(opened)
        expect(len(made) == 1, f"prompts that go on from another became {len(made)} trajectories")


@check("endpoint.tokens.edited", level=Level.SINGLE, law=1, spec=_TOKENS)
async def edited(bench: EndpointBench) -> None:
    """A history that was edited begins a trajectory of the text it has now; what was said before stays trained on."""
    edits: dict[str, Callable[[list[Json]], list[Json]]] = {
        "the answer": lambda history: [history[0], CHAT.said("ab, as I said"), history[2]],
        "the question": lambda history: [CHAT.asked("quite another"), *history[1:]],
        "a system message put before it": lambda history: [{"role": "system", "content": "obey"}, *history],
        "spaces behind the question": lambda history: [CHAT.asked("stone?  "), *history[1:]],
        "a line before the question": lambda history: [CHAT.asked("\nstone?"), *history[1:]],
        "the answer left out": lambda history: [history[0], history[2]],
        "the first turn left out": lambda history: history[2:],
    }
    for what, edit in edits.items():
        async with bench.opened() as opened:
            await opened.agent.say("stone?")
            opened.agent.history = edit([*opened.agent.history, CHAT.asked("ab ba?")])
            said(CHAT, await opened.agent.ask(), what)
            first, second = opened.session.asked
            told = text_of(second.input_ids)
            missing = [one["content"] for one in opened.agent.history if one["content"] not in told]
            expect(not missing, f"{what} was edited: {missing} are not in what the policy was asked: {told!r}")
            whole = tokenizer().encode(told, add_special_tokens=False)
            expect(list(second.input_ids) == whole, f"{what} was edited, and is asked in tokens of another history")
            assert first.generation is not None
            made = trained(opened)
            expect(len(made) == 2, f"{what} was edited, and {len(made)} trajectories were made of two")


@check("endpoint.tokens.instructions", level=Level.SINGLE, law=1, spec=_TOKENS)
async def instructions(bench: EndpointBench) -> None:
    """Instructions of a response stand before it once, and are of that request alone where another goes on from it."""
    async with bench.opened(RESPONSES) as opened:
        previous: Json = {}
        for number, system in enumerate(("obey ab", "obey ab", "be brief", "")):
            more = {**previous, **({"instructions": system} if system else {})}
            told = await opened.agent.post(RESPONSES.path, RESPONSES.body(RESPONSES.question(f"q {number}?"), **more))
            if number == 1 and 400 <= told.status < 500:
                expect(told.reason, f"a response to go on from is refused without a reason: {told}")
                bench.notes.append("goes on from no response by its id")
                return
            previous = {"previous_response_id": answered(RESPONSES, told, "a response")["id"]}
            seen = text_of(opened.session.asked[-1].input_ids)
            counts = {each: seen.count(each) for each in ("obey ab", "be brief")}
            due = {each: int(each == system) for each in counts}
            expect(counts == due, f"the instructions are {system!r}, the policy is asked {seen!r}")
            asked = [f"q {earlier}?" for earlier in range(number + 1) if f"q {earlier}?" not in seen]
            expect(not asked, f"of the conversation that it goes on from {asked} are missing: {seen!r}")
        one, two = (asked.input_ids for asked in opened.session.asked[:2])
        expect(two[: len(one)] == one, "with the same instructions a response goes on in other tokens")
        expect(len(trained(opened)) == 3, "of four responses two share their instructions: not three trajectories")


@check("endpoint.tokens.responses", level=Level.SINGLE, law=1, spec=_TOKENS)
async def responses(bench: EndpointBench) -> None:
    """Whatever goes on from a response by its id goes on from that response alone: a retry, a branch, a later one."""
    async with bench.opened(RESPONSES) as opened:
        previous: dict[int, str] = {}
        said_by: dict[int, list[str]] = {-1: []}
        for number, before in enumerate((-1, 0, 0, 1, 0, 2, 1, 3)):
            more = {} if before < 0 else {"previous_response_id": previous[before]}
            question = f"q {'ab' * number}?"
            body = RESPONSES.body(RESPONSES.question(question), stream=number % 3 == 2, **more)
            told = await opened.agent.post(RESPONSES.path, body)
            if number == 1 and 400 <= told.status < 500:
                expect(told.reason, f"a response to go on from is refused without a reason: {told}")
                bench.notes.append("goes on from no response by its id")
                return
            made = answered(RESPONSES, told, f"response {number}")
            previous[number] = made["id"]
            said_by[number] = [*said_by[before], question, RESPONSES.text(made)]
            seen = text_of(opened.session.asked[-1].input_ids)
            due = text_of(
                tokenizer().apply_chat_template(
                    [
                        {"role": ("user", "assistant")[place % 2], "content": text}
                        for place, text in enumerate(said_by[number][:-1])
                    ],
                    add_generation_prompt=True,
                    return_dict=False,
                )
            )
            expect(seen == due, f"response {number} goes on from {before}, and is asked with {seen!r}, not {due!r}")
        trained(opened)


@check("endpoint.tokens.conversations", level=Level.SINGLE, law=1, spec=_TOKENS, deadline_s=120.0)
async def conversations(bench: EndpointBench) -> None:
    """Whatever agents do, go on, branch off, edit, ask at once, stream: every token is the engine's, once."""
    for seed in range(4):
        draw = Random(f"endpoint/{seed}")
        async with bench.opened() as opened:
            endpoint = await bench.endpoint()
            talks: list[list[Json]] = [[]]
            for number in range(12):
                history = [*draw.choice(talks)]
                if history and draw.random() < 0.2:
                    history[-1] = CHAT.said("edited ab")
                if history and draw.random() < 0.2:
                    history = history[: 2 * draw.randint(0, len(history) // 2)]
                agent = bench.agent(endpoint, opened.agent.key)
                agent.history = history
                await agent.say(f"q{draw.choice('abc')} {number % 5}", stream=draw.random() < 0.3)
                talks.append(agent.history)
            trained(opened)
            if opened.open.num_answers != 12:
                raise Violation(f"12 requests were answered, num_answers is {opened.open.num_answers}")
