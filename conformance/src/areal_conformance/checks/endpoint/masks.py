"""What is trained on: every answer that was given, once, and nothing else.

Knows: several answers to one prompt, and the two exports.
Does not know: how trajectories are put together.
"""

from __future__ import annotations

import asyncio

import torch

from areal_agentic.endpoint import Export
from areal_conformance.benches.endpoint import EndpointBench, Gate, answer, read, said, tokenizer, trained
from areal_conformance.benches.endpoint_forms import CHAT
from areal_conformance.benches.workflow import Asked
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.inference import Generation
from areal_core.contract.train import ROUTED_EXPERTS

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
            due = [read(asked.generation.output_ids) for asked in opened.session.asked if asked.generation]
            expect(len(texts) == 3 and sorted(texts) == sorted(due), f"the engine gave {due}, the agent reads {texts}")
            expect(len(set(texts)) == 3, f"three answers are told as {texts}")
            agent.history.append(told.body["choices"][chosen]["message"])
            await agent.say("well?")
            before = next(one for one in opened.session.asked if _is(one, texts[chosen]))
            last = opened.session.asked[-1]
            assert before.generation is not None
            whole = (*before.input_ids, *before.generation.output_ids)
            told_so = f"answer {chosen} of 3 was chosen, and the next request goes on from other tokens"
            expect(last.input_ids[: len(whole)] == whole, told_so)
            made = trained(opened)
            expect(len(made) == 3, f"three answers, one of which goes on, became {len(made)} trajectories")


def _is(asked: Asked, text: str) -> bool:
    return asked.generation is not None and read(asked.generation.output_ids) == text


@check("endpoint.masks.branches", level=Level.SINGLE, law=1, spec=_MASKS)
async def branches(bench: EndpointBench) -> None:
    """Requests that go on from one answer, one after another or at once, train on it once, and on each of theirs.

    It stays with the one that was gone on with last.
    """
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
        first, *_, newest = opened.session.asked
        assert first.generation is not None
        (longest,) = (one for one in made if _ends(one, newest))
        begin = len(first.input_ids)
        kept = longest.loss_mask[begin : begin + len(first.generation.output_ids)]
        expect(bool(kept.all()), "an answer that four conversations go on from is not trained on in the newest of them")


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


@check("endpoint.masks.alike", level=Level.SINGLE, law=1, spec=_MASKS)
async def alike(bench: EndpointBench) -> None:
    """The same request again, at the same time or later, is another answer: asked, told and trained on by itself."""
    gate = Gate()
    async with bench.opened(at_generate=gate) as opened:
        endpoint = await bench.endpoint()
        agents = [bench.agent(endpoint, opened.agent.key) for _ in range(3)]
        await asyncio.gather(*(agent.get("/models") for agent in agents))  # each has a connection now
        asking = [asyncio.create_task(agent.say("stone?")) for agent in agents]
        await bench.soon(gate.began.get(), "the first of three requests that are alike, at the engine")
        async with bench.opened() as another:  # the others have come when this one was answered
            await another.agent.say("meanwhile?")
        gate.go.set()
        texts = [*await bench.soon(asyncio.gather(*asking), "three requests that are alike")]
        texts.append(await opened.agent.say("stone?"))
        due = sorted(read(one.generation.output_ids) for one in opened.session.asked if one.generation)
        expect(sorted(texts) == due, f"the engine gave {due} to a request made four times, the agents read {texts}")
        await agents[1].say("well?")
        before = next(one for one in opened.session.asked if _is(one, texts[1]))
        assert before.generation is not None
        whole = (*before.input_ids, *before.generation.output_ids)
        going_on = opened.session.asked[-1].input_ids[: len(whole)] == whole
        expect(going_on, "one of four answers to one request was gone on with, and the next is asked with another")
        expect(len(trained(opened)) == 4, "four answers to one request, one of them gone on with, are not four")


@check("endpoint.masks.columns", level=Level.SINGLE, law=1, spec=_MASKS)
async def columns(bench: EndpointBench) -> None:
    """Columns that came with generated tokens stay with them, and a trajectory ended as its last answer did."""

    def script(turn: int) -> Generation:
        stop = StopReason.LENGTH if turn == 1 else StopReason.STOP
        length = len(answer(turn, stop=stop).output_ids)
        routed = torch.arange(4 * length, dtype=torch.int32).reshape(length, 2, 2) + 100 * turn
        return answer(turn, stop=stop, token_extras={ROUTED_EXPERTS: routed})

    async with bench.opened(script=script) as opened:
        await opened.agent.say("stone?")
        await opened.agent.say("ab ba?")
        opened.agent.history = []
        await opened.agent.say("another?")
        for one in trained(opened):
            given = [asked for asked in opened.session.asked if _ends(one, asked)]
            due = given[-1].generation
            assert due is not None
            told = f"a trajectory whose last answer ended with {due.stop_reason!s} ended with {one.stop_reason!s}"
            expect(one.stop_reason is due.stop_reason, told)
            expect(ROUTED_EXPERTS in one.token_extras, f"the column {ROUTED_EXPERTS!r} of the answers was dropped")
            column, length = one.token_extras[ROUTED_EXPERTS], len(due.output_ids)
            kept = torch.equal(column[-length:], due.token_extras[ROUTED_EXPERTS])
            expect(kept, "recorded experts are not those of their tokens")
            expect(bool((column[~one.loss_mask] == -1).all()), "tokens that nobody generated have recorded experts")


def _ends(trajectory: Trajectory, asked: Asked) -> bool:
    assert asked.generation is not None
    whole = [*asked.input_ids, *asked.generation.output_ids]
    return trajectory.input_ids.tolist()[-len(whole) :] == whole
