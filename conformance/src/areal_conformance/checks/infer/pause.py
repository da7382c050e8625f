"""Pause and resume: what stands still, what comes back early, what waits, and that nothing is lost.

Knows: both modes, in any order; the tokens that status counts; requests that end while nothing is computed.
Does not know: updates during a pause (`versions`).
"""

from __future__ import annotations

import asyncio
import contextlib

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.oracles.infer_judging import (
    expect_answered,
    expect_policies,
    expect_survivors,
    prompts,
    teller,
    true_to_versions,
    versions_of,
)
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ResourceError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, PauseMode

MODES = (PauseMode.KEEP, PauseMode.ABORT)
Started = tuple[list[GenerationRequest], list[asyncio.Task[Generation]]]
"""Requests, and the calls that are to answer them."""


def modes(bench: InferBench) -> list[PauseMode]:
    """Return the modes the target claims."""
    return [mode for mode in MODES if bench.target.claimed(f"pause.{mode.value}")]


def started(bench: InferBench, engine: InferenceEngine, count: int, *, tokens: int = LONG, seed: int = 21) -> Started:
    """Start requests of different prompts, greedy and sampled in turn."""
    requests = bench.asks(prompts(count, seed=seed), temperature=[0.0, 1.0], max_new_tokens=tokens)
    return requests, bench.start(engine, requests)


async def stands_still(bench: InferBench, engine: InferenceEngine, told: str) -> None:
    """Expect that no token is computed over many turns of the event loop."""
    before = (await engine.status()).tokens_generated
    await bench.turns(300)
    status = await engine.status()
    made = status.tokens_generated - before
    expect(made == 0, f"{told}: the engine is paused, yet {made} tokens were generated")
    expect(status.paused, f"{told}: status must show paused, got {status}")


@check("infer.pause.freezes", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.keep",))
async def freezes(bench: InferBench) -> None:
    """No token is computed between the return of `pause(keep)` and `resume`, and nobody gets an answer."""
    async with bench.engine(max_concurrent=4) as engine:
        requests, calls = started(bench, engine, 6, tokens=160)
        for number in range(3):
            await bench.until_generated(engine, 8)
            await engine.pause(PauseMode.KEEP)
            answered = [call.done() for call in calls]
            await stands_still(bench, engine, f"pause {number + 1} of 3")
            expect([call.done() for call in calls] == answered, "a request was answered while the engine was frozen")
            await engine.resume()
            status = await engine.status()
            expect(not status.paused, f"resumed, yet status shows {status}")
        results = await bench.results(calls)
    expect_policies(bench, zip(results, requests, strict=True))
    short = [len(result.output_ids) for result in results if len(result.output_ids) != 160]
    expect(not short, f"frozen requests asked for 160 tokens each; some got {short}")


@check("infer.pause.keep_is_invisible", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.keep",))
async def keep_is_invisible(bench: InferBench) -> None:
    """A request frozen and resumed gives the tokens and log-probs of one that was left alone."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 30, max_new_tokens=120)
        alone = await bench.generate(engine, request)
        call = bench.call(engine.generate(request))
        await bench.freeze(engine, times=4, after=5)
        frozen = (await bench.results([call]))[0]
    expect_policies(bench, [(alone, request), (frozen, request)])
    told = f"frozen four times {frozen.output_ids[:12]}..., {len(frozen.output_ids)} tokens, {frozen.stop_reason}"
    unhurt = frozen.output_ids == alone.output_ids and frozen.stop_reason is StopReason.LENGTH
    expect(unhurt, f"left alone the request gives {alone.output_ids[:12]}..., {told}")


@check("infer.pause.abort_returns", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.abort",))
async def abort_returns(bench: InferBench) -> None:
    """`pause(abort)` returns all in flight at once with what it has: running as a true beginning, queued empty."""
    async with bench.engine(max_concurrent=3) as engine:
        requests, calls = started(bench, engine, 7)
        await bench.until_generated(engine, 30)
        await engine.pause(PauseMode.ABORT)
        counted = (await engine.status()).tokens_generated
        parts = await bench.results(calls)
        await stands_still(bench, engine, "after pause(abort)")
        status = await engine.status()
        left = status.num_running, status.num_waiting
        expect(left == (0, 0), f"everything was returned, yet status shows {left[0]} running, {left[1]} waiting")
        expect(status.tokens_generated == counted, "tokens were counted after pause(abort) had returned")
        await engine.resume()
    for part, request in zip(parts, requests, strict=True):
        told = f"{request.request_id!r} was cut short by a pause: stop reason aborted expected, got {part.stop_reason}"
        expect(part.stop_reason is StopReason.ABORTED, told)
    expect_policies(bench, zip(parts, requests, strict=True))
    with_tokens = sum(bool(part.output_ids) for part in parts)
    expect(with_tokens == 3, f"max_concurrent is 3 and all had begun; {with_tokens} of 7 came back with tokens")


@check("infer.pause.abort_returns_all", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.abort",))
async def abort_returns_all(bench: InferBench) -> None:
    """`pause(abort)` returns every token computed: outputs are together as long as status has counted."""
    keeps = bench.target.claimed("pause.keep")
    async with bench.engine(max_concurrent=4) as engine:
        for number, frozen in enumerate((False, keeps, False)):
            before = (await engine.status()).tokens_generated
            requests, calls = started(bench, engine, 3 + number, seed=25 + number)
            await bench.until_generated(engine, 9 + 4 * number)
            if frozen:
                await engine.pause(PauseMode.KEEP)
                await bench.turns(20)
            await engine.pause(PauseMode.ABORT)
            parts = await bench.results(calls)
            counted = (await engine.status()).tokens_generated - before
            returned = [len(part.output_ids) for part in parts]
            await engine.resume()
            told = f"{counted} tokens were computed until pause(abort), requests came back with {returned}"
            expect(sum(returned) == counted, f"{told}, {sum(returned)} in all")
            expect_policies(bench, zip(parts, requests, strict=True))


@check("infer.pause.abort_continues", level=Level.SINGLE, law=1, spec="infer#pause", requires=("pause.abort",))
async def abort_continues(bench: InferBench) -> None:
    """What `pause(abort)` returned is continued, as prompt plus tokens, into the output of an undisturbed request."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 30, max_new_tokens=LONG)
        call = bench.call(engine.generate(request))
        await bench.until_generated(engine, 15)
        await engine.pause(PauseMode.ABORT)
        part = (await bench.results([call]))[0]
        await engine.resume()
        prior = part.output_ids[:60]
        more = bench.ask(5, 9, 30, *prior, num_prior=len(prior), max_new_tokens=20)
        rest = await bench.generate(engine, more)
        whole_request = bench.ask(5, 9, 30, max_new_tokens=len(prior) + 20)
        whole = await bench.generate(engine, whole_request)
    expect_policies(bench, [(part, request), (rest, more), (whole, whole_request)])
    got = (len(rest.output_ids), rest.stop_reason)
    expect(got == (20, StopReason.LENGTH), f"the continuation must give 20 tokens, got {got}")
    alike = bench.dtype != "float32" or (*prior, *rest.output_ids) == whole.output_ids
    expect(alike, f"{len(prior)} tokens returned early and 20 more differ from the {len(whole.output_ids)} of one call")


@check("infer.pause.holds_new", level=Level.SINGLE, law=7, spec="infer#pause")
async def holds_new(bench: InferBench) -> None:
    """Requests that come during a pause wait, and are served whole after `resume`."""
    for mode in modes(bench):
        async with bench.engine(max_concurrent=2) as engine:
            await engine.pause(mode)
            requests, calls = started(bench, engine, 5, tokens=9)
            await stands_still(bench, engine, f"requests came during pause({mode})")
            early = [call for call in calls if call.done()]
            expect(not early, f"{len(early)} of 5 requests that came during pause({mode}) were answered before resume")
            calls[1].cancel()
            await engine.resume()
            outcomes = await bench.ended(calls, f"requests that came during pause({mode}) to be served after resume")
        del outcomes[1], requests[1]  # which was cancelled
        expect_survivors(bench, outcomes, requests)
        for outcome in outcomes:
            whole = isinstance(outcome, Generation) and len(outcome.output_ids) == 9
            expect(whole, f"a request that came during pause({mode}) must be served whole, got {outcome!r}")


@check("infer.pause.idempotent", level=Level.SINGLE, law=10, spec="infer#pause")
async def idempotent(bench: InferBench) -> None:
    """`pause` and `resume` repeat without effect, idle or busy: one `resume` ends any number of pauses."""
    for mode in modes(bench):
        async with bench.engine() as engine:
            await engine.resume()
            await engine.resume()
            for _ in range(3):
                await engine.pause(mode)
            await stands_still(bench, engine, f"idle, three times pause({mode})")
            await engine.resume()
            await engine.resume()
            expect(not (await engine.status()).paused, f"three times pause({mode}), then resume: still paused")
            requests, calls = started(bench, engine, 3, tokens=40)
            await bench.until_generated(engine, 6)
            for _ in range(10):
                await engine.pause(mode)
            await stands_still(bench, engine, f"busy, ten times pause({mode})")
            await engine.resume()
            expect_policies(bench, zip(await bench.results(calls), requests, strict=True))
            await expect_answered(bench, engine, bench.ask(6, 9))


@check("infer.pause.mixed", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.keep", "pause.abort"))
async def mixed(bench: InferBench) -> None:
    """`abort` during a `keep` returns what was frozen; `keep` during an `abort` holds what has come since."""
    async with bench.engine(max_concurrent=2) as engine:
        requests, calls = started(bench, engine, 4)
        await bench.until_generated(engine, 10)
        await engine.pause(PauseMode.KEEP)
        await bench.turns(20)
        await engine.pause(PauseMode.ABORT)
        parts = await bench.results(calls)
        reasons = {part.stop_reason for part in parts}
        expect(reasons == {StopReason.ABORTED}, f"pause(abort) after pause(keep) must return all as aborted: {reasons}")
        expect_policies(bench, zip(parts, requests, strict=True))
        later, late = started(bench, engine, 3, tokens=9, seed=22)
        await bench.turns(20)
        await engine.pause(PauseMode.KEEP)
        await stands_still(bench, engine, "pause(keep) after pause(abort)")
        expect(not any(call.done() for call in late), "pause(keep) after pause(abort) must hold requests, not answer")
        await engine.resume()
        expect_policies(bench, zip(await bench.results(late), later, strict=True))


@check("infer.pause.cancelled", level=Level.SINGLE, law=10, spec="infer#pause", requires=("pause.keep",))
async def cancelled(bench: InferBench) -> None:
    """A request cancelled while frozen is gone: its slot is free and the others go on as if it had never been."""
    async with bench.engine(max_concurrent=3) as engine:
        doomed = bench.call(engine.generate(bench.ask(9, 9, name="doomed", max_new_tokens=LONG)))
        requests, calls = started(bench, engine, 5, tokens=50)
        await bench.until_generated(engine, 12)
        await engine.pause(PauseMode.KEEP)
        for call in (doomed, calls[0], calls[4]):
            call.cancel()
        await bench.turns(20)
        before = (await engine.status()).tokens_generated
        await engine.resume()
        outcomes = await bench.ended(calls, "the requests that were not cancelled")
        survived = expect_survivors(bench, outcomes[1:4], requests[1:4])
        expect(survived == 3, f"of 5 frozen requests two were cancelled, {survived} came to their end")
        await bench.until_shown(engine, 0, 0, "after every request was cancelled or done")
        computed = (await engine.status()).tokens_generated - before
        told = f"requests for 150 tokens at most were left, {computed} were computed: one that was cancelled went on"
        expect(computed < LONG // 2, told)  # a fast engine has ended it by itself before anybody lost patience


@check("infer.cancel.while_paused", level=Level.SINGLE, law=10, spec="infer#generate", requires=("pause.keep",))
async def while_paused(bench: InferBench) -> None:
    """A request cancelled during a pause gives its place up during the pause, not with the next `resume`."""
    async with bench.engine(max_concurrent=3) as engine:
        calls = bench.start(engine, bench.asks(prompts(5, seed=29), max_new_tokens=LONG))
        await bench.until_generated(engine, 12)
        await engine.pause(PauseMode.KEEP)
        for number, doomed in enumerate((calls[1], calls[4], calls[0], calls[2], calls[3])):
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
            left = 4 - number

            async def freed(left: int = left) -> bool:
                status = await engine.status()
                return status.num_running + status.num_waiting == left and status.num_running <= left

            with contextlib.suppress(Violation):  # said below in the words of the law it is about
                await bench.until(freed, "a place to be free", seconds=2.0)
            status = await engine.status()
            told = f"{number + 1} of 5 requests were cancelled during a pause: {left} are left"
            shown = f"status shows {status.num_running} running and {status.num_waiting} waiting"
            expect(await freed(), f"{told}, {shown}")
        expect((await engine.status()).paused, "the engine was not resumed, its status must show paused")
        await engine.resume()
        await expect_answered(bench, engine, bench.ask(5, 9))


async def _goes_on(bench: InferBench, engine: InferenceEngine, told: str) -> None:
    """Expect an engine to answer a new request and to keep generating for a running one."""
    await expect_answered(bench, engine, bench.ask(5, 9, max_new_tokens=12), told=told)
    await bench.until_generated(engine, 10)


async def _two(bench: InferBench) -> tuple[InferenceEngine, InferenceEngine]:
    engines = (bench.new(), bench.new())
    for replica, engine in enumerate(engines):
        try:
            await engine.start(bench.spec(replica=replica))
        except ResourceError as error:
            raise Inconclusive(f"two engines do not fit one process here: {error}") from error
    return engines


@check("infer.pause.tenants", level=Level.SINGLE, law=7, spec="infer#pause")
async def tenants(bench: InferBench) -> None:
    """Of two engines in one process, pausing, updating or closing one leaves the other as it is."""
    one, two = await _two(bench)
    running = bench.ask(7, 7, name="running", max_new_tokens=LONG)
    call = bench.call(two.generate(running))
    for mode in modes(bench):
        await one.pause(mode)
        await _goes_on(bench, two, f"the first engine is paused ({mode})")
        expect(not (await two.status()).paused, f"the first engine is paused ({mode}), the second says it is too")
        expect(not call.done(), f"pausing the first engine ({mode}) ended a request of the second")
        await one.resume()
    version = await bench.update(one, teller(bench, 1))
    await _goes_on(bench, two, "the first engine has new weights")
    served = [await bench.serving(engine) for engine in (one, two)]
    expect(served == [version, 0], f"the first serves version {version}, the second 0; got {served}")
    request = bench.ask(5, 9)
    told = await bench.generate(one, request)
    true_to_versions(told, request)
    expect(versions_of(told) == [version] * 8, f"the first engine must serve version {version}, got {told}")
    await one.close()
    await _goes_on(bench, two, "the first engine is closed")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await two.close()


@check("infer.pause.ends_first_token", level=Level.SINGLE, law=1, spec="infer#pause", requires=("pause.abort",))
async def ends_first_token(bench: InferBench) -> None:
    """Aborted at any moment, also within the first tokens, what comes back is consistent and a true beginning."""
    async with bench.engine() as engine:
        for number in range(8):
            requests, calls = started(bench, engine, 3, seed=30 + number)
            await bench.turns(number)
            if number > 4:
                await bench.until_generated(engine, 2 * number)
            # A request the engine had not heard of when a pause came waits for resume; ended by a later abort.
            for turns in (2, 5, 0):
                await engine.pause(PauseMode.ABORT)
                if turns:
                    await engine.resume()
                    await bench.turns(turns)
            parts = await bench.results(calls)
            await engine.resume()
            expect_policies(bench, zip(parts, requests, strict=True))


UNABLE = {"keep": Row("freeze requests", PauseMode.KEEP), "abort": Row("return requests early", PauseMode.ABORT)}


@family("infer.pause.refuse_{mode}", UNABLE, level=Level.SINGLE, law=8, spec="infer#pause", unless=("pause.{mode}",))
async def refuse(bench: InferBench, mode: PauseMode) -> None:
    """An engine that cannot {...} refuses `pause({mode})`."""
    async with bench.engine(fresh=True) as engine:
        await bench.arefuses(f"pause.{mode.value}", lambda: engine.pause(mode))
