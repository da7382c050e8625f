"""What is trained on: every answer that was given, once, and nothing else.

Knows: several answers to one prompt, and the two exports.
Does not know: how trajectories are put together.
"""

from __future__ import annotations

import asyncio

from areal_agentic.endpoint import Export
from areal_conformance.benches.endpoint import EndpointBench, said, tokenizer, trained
from areal_conformance.benches.endpoint_forms import CHAT
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_MASKS = "endpoint#masks"


@check("endpoint.masks.answers", level=Level.SINGLE, law=1, spec=_MASKS)
async def answers(bench: EndpointBench) -> None:
    """Answers are on the mask, whole; systems, questions and what stands between are off it, without log-probs."""
    async with bench.opened() as opened:
        opened.agent.history.append({"role": "system", "content": "be ab"})
        for question in ("stone?", "ab ba?"):
            await opened.agent.say(question)
        for one in trained(opened):
            off = [int(token) for token, on in zip(one.input_ids, one.loss_mask, strict=True) if not on]
            text = tokenizer().decode(off)
            expect("be ab" in text and "stone?" in text, f"off the mask stands {text!r}")
            expect(bool((one.versions[~one.loss_mask] == -1).all()), "tokens off the mask have versions")
            expect(not one.logprobs[~one.loss_mask].any(), "tokens off the mask have log-probs")


@check("endpoint.masks.choices", level=Level.SINGLE, law=1, spec=_MASKS)
async def choices(bench: EndpointBench) -> None:
    """Of `n` answers each is told and trained on once; a history goes on from the one it holds."""
    for chosen in range(3):
        async with bench.opened() as opened:
            agent = opened.agent
            agent.history.append(CHAT.asked("stone?"))
            told = await agent.ask(n=3)
            said(CHAT, told, "three answers")
            texts = [choice["message"]["content"] for choice in told.body["choices"]]
            due = [_text(asked.generation.output_ids) for asked in opened.session.asked if asked.generation]
            expect(len(texts) == 3 and sorted(texts) == sorted(due), f"the engine gave {due}, the agent reads {texts}")
            expect(len(set(texts)) == 3, f"three answers are told as {texts}")
            agent.history.append(told.body["choices"][chosen]["message"])
            await agent.say("well?")
            before = next(one for one in opened.session.asked if one.generation and _is(one, texts[chosen]))
            last = opened.session.asked[-1]
            assert before.generation is not None
            whole = (*before.input_ids, *before.generation.output_ids)
            told_so = f"answer {chosen} of 3 was chosen, and the next request goes on from other tokens"
            expect(last.input_ids[: len(whole)] == whole, told_so)
            made = trained(opened)
            expect(len(made) == 3, f"three answers, one of which goes on, became {len(made)} trajectories")


def _text(ids: tuple[int, ...]) -> str:
    return str(tokenizer().decode(list(ids), skip_special_tokens=True))


def _is(asked: object, text: str) -> bool:
    return _text(asked.generation.output_ids) == text  # type: ignore[attr-defined]


@check("endpoint.masks.branches", level=Level.SINGLE, law=1, spec=_MASKS)
async def branches(bench: EndpointBench) -> None:
    """Requests that go on from one answer, one after another or at once, train on it once, and on each of theirs."""
    async with bench.opened() as opened:
        endpoint = await bench.endpoint()
        await opened.agent.say("stone?")
        others = [bench.agent(endpoint, opened.agent.key) for _ in range(4)]
        for other in others:
            other.history = [*opened.agent.history]
        await others[0].say("one?")
        await asyncio.gather(*(other.say(f"{number}?") for number, other in enumerate(others[1:])))
        await others[2].say("more?")
        made = trained(opened)
        expect(len(made) == 4, f"an answer that four conversations go on from became {len(made)} trajectories")


@check("endpoint.masks.individual", level=Level.SINGLE, law=1, spec=_MASKS)
async def individual(bench: EndpointBench) -> None:
    """With `export: individual` each answer is a trajectory of its own, and the whole prompt is context."""
    endpoint = bench.fresh(export=Export.INDIVIDUAL.value)
    await endpoint.start()
    async with bench.opened(endpoint=endpoint) as opened:
        for question in ("stone?", "ab ba?", "well?"):
            await opened.agent.say(question)
        made = trained(opened)
        expect(len(made) == 3, f"three answers became {len(made)} trajectories")
        for one, asked in zip(made, opened.session.asked, strict=True):
            assert asked.generation is not None
            count = int(one.loss_mask.sum())
            due = len(asked.generation.output_ids)
            expect(count == due, f"{count} tokens of a trajectory are trained on, the answer has {due}")
