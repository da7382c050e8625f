"""Generating, pausing, cancelling and closing, with the server in this event loop: every race has one order."""

from __future__ import annotations

import asyncio
import math

import pytest

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, GenerationFailed, PromptTooLong
from areal_core.contract.inference import InferenceEngine, InferenceSpec, PauseMode
from areal_torch.testing.serving import ask

from .toy import ToyEngine, ask_many, beside
from .toy_server import token


def expected(toy, prompt, count):
    """Return what the toy's weights say to a prompt."""
    return tuple(token(toy.mark, len(prompt) + n) for n in range(count))


def test_it_is_an_inference_engine():
    """The class has every member of the contract."""
    assert isinstance(ToyEngine(), InferenceEngine)


def test_a_request_gets_its_tokens_log_probs_and_versions(model):
    """One whole generation, through HTTP."""

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto = True
            return await engine.generate(ask(5, 9, max_new_tokens=3)), expected(toy, (5, 9), 3)

    generation, tokens = asyncio.run(run())

    assert tokens == generation.output_ids
    assert [(s.start, s.stop, s.version) for s in generation.version_spans] == [(0, 3, 0)]
    assert StopReason.LENGTH is generation.stop_reason


def test_only_as_many_requests_as_there_are_slots_reach_the_server_in_order(model):
    """The others wait here, first come first served."""

    async def run():
        async with beside(model, concurrent=2) as (engine, toy):
            calls = ask_many(engine, [ask(5, n, max_new_tokens=1) for n in range(2, 7)])
            await engine.until_in_server(2)
            status = await engine.status()
            seen = []
            while not all(call.done() for call in calls):
                seen += [tuple(r.body["ids"]) for r in toy.requests.values() if tuple(r.body["ids"]) not in seen]
                toy.compute(1)
                await asyncio.sleep(0)
            return status, seen

    status, seen = asyncio.run(run())

    assert (status.num_running, status.num_waiting) == (2, 3)
    assert [(5, n) for n in range(2, 7)] == sorted(seen, key=seen.index)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ask(64), BatchError),
        (ask(5, max_new_tokens=0), BatchError),
        (ask(5, temperature=float("nan")), BatchError),
        (ask(5, min_p=1.5), BatchError),
        (ask(5, presence_penalty=3.0), BatchError),
        (ask(5, repetition_penalty=0.0), BatchError),
        (ask(*[5] * 200), PromptTooLong),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_sent(model, request_, error):
    """By type; the server hears nothing of it."""

    async def run():
        async with beside(model) as (engine, toy):
            with pytest.raises(error):
                await engine.generate(request_)
            return toy.log

    assert asyncio.run(run()) == []


def test_what_the_server_refuses_is_the_requests_fault_and_what_it_fails_is_not(model):
    """400 is a BatchError that nobody retries, 500 a GenerationFailed that the pool retries elsewhere."""

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto = True
            with pytest.raises(BatchError, match="63 is no token"):
                await engine.generate(ask(63))
            await engine.misbehave("generate", "500")
            with pytest.raises(GenerationFailed, match="500"):
                await engine.generate(ask(5))
            return await engine.generate(ask(5, max_new_tokens=1))  # and the next call is not lost with it

    assert len(asyncio.run(run()).output_ids) == 1


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf])
def test_a_log_prob_that_is_not_finite_fails_the_request(model, logprob):
    """Weights that are not finite give tokens nobody may train on; finite ones serve again."""

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto, engine.toy.logprob = True, logprob
            with pytest.raises(GenerationFailed, match="not finite"):
                await engine.generate(ask(5, 9, max_new_tokens=3))
            engine.toy.logprob = -0.25
            return await engine.generate(ask(5, 9, max_new_tokens=3))

    assert asyncio.run(run()).logprobs == (-0.25,) * 3


def test_a_dropped_connection_costs_nothing_and_many_the_request(model):
    """The server is asked whether it lives, and again for the answer; four times are enough."""

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto = True
            await engine.misbehave("generate", "drop", times=3)
            fourth = await engine.generate(ask(5, max_new_tokens=1))
            await engine.misbehave("generate", "drop", times=4)
            with pytest.raises(GenerationFailed, match="no answer 4 times"):
                await engine.generate(ask(5))
            return fourth

    assert len(asyncio.run(run()).output_ids) == 1


def test_cancelling_frees_the_slot_and_ends_the_request_in_the_server(model):
    """Running or waiting; and the status shows it."""

    async def run():
        async with beside(model, concurrent=1) as (engine, toy):
            running, waiting, last = ask_many(engine, [ask(5, n, max_new_tokens=50) for n in (2, 3, 4)])
            await engine.until_in_server(1)
            first = next(iter(toy.requests.values()))
            waiting.cancel()
            running.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)
            await engine.until(lambda: first.body["id"] not in toy.requests)
            await engine.until_in_server(1)
            toy.compute(50)
            generation = await last
            return generation, await engine.status()

    generation, status = asyncio.run(run())

    assert len(generation.output_ids) == 50
    assert (status.num_running, status.num_waiting) == (0, 0)


def test_keep_freezes_and_abort_returns_what_there_is(model):
    """Pause keep, then abort: running ones come back with their tokens, waiting ones empty, later ones wait."""

    async def run():
        async with beside(model, concurrent=1) as (engine, toy):
            calls = ask_many(engine, [ask(5, 9, max_new_tokens=50), ask(5, 8, max_new_tokens=50)])
            await engine.until_in_server(1)
            toy.compute(3)
            await engine.pause(PauseMode.KEEP)
            toy.compute(3)
            kept = [call.done() for call in calls], (await engine.status()).tokens_generated
            await engine.pause(PauseMode.ABORT)
            parts = await asyncio.gather(*calls)
            late = asyncio.ensure_future(engine.generate(ask(5, 7, max_new_tokens=1)))
            for _ in range(50):
                await asyncio.sleep(0)
            held = late.done(), len(toy.requests), (await engine.status()).paused
            toy.auto = True
            await engine.resume()
            await engine.resume()
            return kept, parts, held, await late

    kept, parts, held, late = asyncio.run(run())

    assert kept == ([False, False], 3)
    assert [len(part.output_ids) for part in parts] == [3, 0]
    assert {StopReason.ABORTED} == {part.stop_reason for part in parts}
    assert held == (False, 0, True)
    assert StopReason.LENGTH is late.stop_reason


def test_a_request_that_reaches_the_server_after_the_pause_is_ended_too(model):
    """The pause overtakes a request on its way; it does not stay behind in a paused server."""

    async def run():
        async with beside(model) as (engine, toy):
            arrive = asyncio.Event()
            generate = engine.toy.generate

            async def slowly(api, call):
                await arrive.wait()
                return await generate(api, call)

            type(engine.toy).generate, before = lambda _self, api, call: slowly(api, call), type(engine.toy).generate
            try:
                call = asyncio.ensure_future(engine.generate(ask(5, max_new_tokens=50)))
                await asyncio.sleep(0)
                pause = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
                await engine.until(lambda: toy.paused == "abort")
                arrive.set()
                await pause
            finally:
                type(engine.toy).generate = before
            return await call

    assert StopReason.ABORTED is asyncio.run(run()).stop_reason


def test_a_server_that_refuses_requests_while_it_aborts_is_understood(model):
    """503 during pause(abort) is an interruption, not a failure; at any other time it is one."""

    async def run():
        async with beside(model) as (engine, toy):
            await engine.misbehave("pause", "hang")
            pause = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
            await engine.until(lambda: "pause" in toy.log)
            engine.running.slots.open()  # as if it had been given its slot a moment before
            await engine.misbehave("generate", "503")
            engine.running.state.paused, before = None, engine.running.state.paused
            call = asyncio.ensure_future(engine.generate(ask(5)))
            await engine.until(lambda: engine.running.calls.num_running == 1)
            engine.running.state.paused = before
            part = await call
            pause.cancel()
        return part

    assert StopReason.ABORTED is asyncio.run(run()).stop_reason


def test_a_pause_the_server_refuses_leaves_it_computing(model):
    """The error is typed, the status says what is true, and requests go on."""

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto = True
            await engine.misbehave("pause", "500")
            with pytest.raises(GenerationFailed):
                await engine.pause(PauseMode.KEEP)
            return (await engine.status()).paused, await engine.generate(ask(5, max_new_tokens=1))

    paused, generation = asyncio.run(run())

    assert not paused
    assert len(generation.output_ids) == 1


def test_a_cancelled_pause_or_resume_still_happens(model):
    """A caller that gives up cannot leave a server half paused."""

    async def run():
        async with beside(model) as (engine, toy):
            pause = asyncio.ensure_future(engine.pause(PauseMode.KEEP))
            await engine.until(lambda: engine.running.state.paused is not None)
            pause.cancel()
            await engine.resume()
            toy.auto = True
            return toy.log.copy(), await engine.generate(ask(5, max_new_tokens=1))

    log, generation = asyncio.run(run())

    assert log == ["pause keep", "resume"]
    assert len(generation.output_ids) == 1


@pytest.mark.parametrize("paused", [None, PauseMode.KEEP, PauseMode.ABORT])
def test_close_fails_everybody_who_waits(model, paused):
    """Running, frozen, waiting for a slot: GenerationFailed; three closes at once return."""

    async def run():
        async with beside(model, concurrent=2) as (engine, _):
            calls = ask_many(engine, [ask(5, n, max_new_tokens=50) for n in (2, 3, 4)])
            await engine.until_in_server(2)
            if paused:
                await engine.pause(paused)
                calls += ask_many(engine, [ask(6, n, max_new_tokens=50) for n in (2, 3, 4)])
                await asyncio.sleep(0)
            await asyncio.gather(*(engine.close() for _ in range(3)))
            with pytest.raises(GenerationFailed, match="closed"):
                await engine.generate(ask(5))
            with pytest.raises(GenerationFailed, match="closed"):
                await engine.status()
            return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(run())

    interrupted = 3 if paused is PauseMode.ABORT else 0
    assert all(isinstance(outcome, GenerationFailed) for outcome in outcomes[interrupted:])
    assert len(outcomes) == (6 if paused else 3)


def test_close_during_pause_commit_and_receive_resolves_them(model):
    """Every one of them raises GenerationFailed, none hangs."""

    async def run():
        async with beside(model) as (engine, toy):
            for route in ("pause", "resume"):
                await engine.misbehave(route, "hang")
            pause = asyncio.ensure_future(engine.pause(PauseMode.KEEP))
            await engine.until(lambda: "pause" in toy.log)
            resume = asyncio.ensure_future(engine.resume())
            await asyncio.sleep(0)
            await engine.close()
            return await asyncio.gather(pause, resume, return_exceptions=True)

    assert [GenerationFailed] * 2 == [type(outcome) for outcome in asyncio.run(run())]


def test_nothing_is_answered_before_start_and_close_needs_no_start(model):
    """Typed, and at once."""

    async def run():
        engine = ToyEngine()
        with pytest.raises(GenerationFailed, match="not started"):
            await engine.generate(ask(5))
        await engine.close()
        await engine.close()
        with pytest.raises(GenerationFailed, match="closed"):
            await engine.start(InferenceSpec(model_path=str(model)))

    asyncio.run(run())


def test_the_status_waits_for_nobody(model, monkeypatch):
    """A server that does not tell its counts costs a moment, and the last ones known are told."""
    monkeypatch.setattr("areal_serving.engine.STATUS_TIMEOUT_S", 0.01)

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto = True
            await engine.generate(ask(5, max_new_tokens=4))
            first = await engine.status()
            outcomes = []
            for how in ("hang", "500", "drop"):
                await engine.misbehave("gauges", how)
                outcomes.append(await engine.status())
            return first, outcomes

    first, outcomes = asyncio.run(run())

    assert first.tokens_generated == 4
    assert [(status.tokens_generated, status.version) for status in outcomes] == [(4, 0)] * 3


def test_busy_time_is_that_of_requests_that_are_not_paused(model):
    """With a clock of its own: idle and paused seconds do not count."""

    async def run():
        now = 0.0
        async with beside(model, clock=lambda: now) as (engine, toy):
            call = asyncio.ensure_future(engine.generate(ask(5, max_new_tokens=1)))
            await engine.until_in_server(1)
            now = 3.0
            await engine.pause(PauseMode.KEEP)
            now = 10.0
            await engine.resume()
            now = 14.0
            toy.compute(1)
            await call
            now = 20.0
            return (await engine.status()).busy_s

    assert asyncio.run(run()) == 7.0
