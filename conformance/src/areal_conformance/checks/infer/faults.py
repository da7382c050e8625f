"""Updates and requests that go wrong halfway: the old weights serve, the next update works, nobody hangs.

Knows: sources that stall, fail or bring nonsense; cancellation; calls that cross.
Does not know: faults of a backend's own (its adapter's), which other checks ask for by name.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

import attrs
import torch

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.content import computes
from areal_conformance.checks.infer.pause import modes
from areal_conformance.checks.infer.sources import FailingSource, stalled
from areal_conformance.checks.infer.updates import serves
from areal_conformance.checks.infer.versions import harvest, told_engine
from areal_conformance.oracles.infer_judging import (
    all_true_to_versions,
    expect_answered,
    expect_policies,
    expect_policy,
    expect_survivors,
    prompts,
    raises,
    teller,
)
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, GenerationFailed, StorageError, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_core.weights.tensors import fingerprint

_CLOSES_S = 1.0
"""An engine may close while a transfer stands still, or wait until it goes on."""
rule = partial(check, level=Level.FAULTS, law=7, spec="infer#weights")


@rule("infer.faults.failing_source", spec="weights#WeightSource")
async def failing_source(bench: InferBench) -> None:
    """A source that fails, first, halfway or last, fails phase one: the old weights serve and the next update works."""
    errors = (OSError("lost"), StorageError("the disk is full"), RuntimeError("broken"), WeightSyncError("gone"))
    count = len(bench.weights().tensors)
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        for number, at in enumerate((0, 1, count // 2, count - 1)):
            source = FailingSource(teller(bench, 50), old + 1, at=at, error=errors[number])
            told = f"a version that broke off at tensor {at} of {count}"
            async with bench.receiving(engine):
                await raises(Exception, partial(engine.receive_weights, source, old + 1), f"receive_weights of {told}")
                bench.numbers["failed"] = number + 1.0
                await raises(ArealError, partial(engine.commit_weights, old + 1), f"commit of {told}")
            await serves(bench, engine, old, f"the source failed at tensor {at} of {count}")
            old = await told_engine(bench, engine)
            await serves(bench, engine, old, f"the update after a source that failed at tensor {at}")


@rule("infer.faults.stalled_source", law=9, spec="weights#WeightSource", requires=("weights.staged",))
async def stalled_source(bench: InferBench) -> None:
    """While a source stalls the engine generates and answers status; aborted, the transfer ends and leaves nothing."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        async with stalled(bench, engine, teller(bench, 50), at=3) as (source, receiving):
            await serves(bench, engine, old, "the source stalls")
            aborting = bench.call(engine.abort_weights())
            await bench.turns(20)
            await serves(bench, engine, old, "the source stalls and the update is being aborted")
        expect(not source.timed_out, "the engine did not generate while the source stalled")
        outcomes = await bench.ended([receiving, aborting], "an aborted transfer to end")
        expect(outcomes[1] is None, f"abort_weights must return, raised {outcomes[1]!r}")
        await engine.abort_weights()
        await raises(ArealError, partial(engine.commit_weights, old + 1), "commit of an aborted transfer")
        await serves(bench, engine, old, "a transfer aborted while it stalled")
        await told_engine(bench, engine)
        await serves(bench, engine, old + 1, "the update after an aborted one")


@rule("infer.faults.receive_cancelled", requires=("weights.staged",))
async def receive_cancelled(bench: InferBench) -> None:
    """A caller of `receive_weights` that goes away midway harms nothing: the next update is whole."""
    base = bench.weights()
    async with bench.engine() as engine:
        for at in (2, -2):
            async with stalled(bench, engine, bench.weights(bench.model(seed=5)), at=at) as (_, receiving):
                receiving.cancel()
                await computes(bench, engine, bench.model(), base, "receive_weights was cancelled")
            await bench.ended([receiving], "a cancelled receive_weights to end")
            await engine.abort_weights()
            await computes(bench, engine, bench.model(), base, "a cancelled transfer was aborted")
            base = bench.weights(bench.model(seed=6)) if base is bench.weights() else bench.weights()
            await bench.update(engine, base)
            await computes(bench, engine, bench.model(), base, "the update after a cancelled one")


@rule("infer.faults.close_while_receiving", law=9, spec="infer#close", requires=("weights.staged",))
async def close_while_receiving(bench: InferBench) -> None:
    """`close` during a transfer ends it: close returns, the caller of `receive_weights` gets an error, nobody hangs.

    So it is of a transfer that is being aborted: whoever aborts it gets an answer or an error, and is not cancelled.
    """
    for aborted in (False, True):
        engine = bench.new()
        await engine.start(bench.spec())
        aborting = []
        async with stalled(bench, engine, bench.weights(), at=2) as (_, receiving):
            generating = bench.call(engine.generate(bench.ask(5, max_new_tokens=LONG)))
            await bench.until_generated(engine, 3)
            if aborted:
                aborting = [bench.call(engine.abort_weights()) for _ in range(2)]
                await bench.turns(1)
            closing = bench.call(engine.close())
            await asyncio.wait([closing], timeout=_CLOSES_S)
        received, generated, closed = await bench.ended([receiving, generating, closing], "close during a transfer")
        expect(closed is None, f"close must return, raised {closed!r}")
        failed = isinstance(received, Exception)
        expect(failed, f"receive_weights of a closed engine must fail, returned {received!r:.200}")
        expect(isinstance(generated, GenerationFailed), f"generate must get GenerationFailed, got {generated!r:.200}")
        for outcome in await bench.ended(aborting, "aborts of a transfer at close"):
            told = f"an abort that close overtook must return or fail with an error of the core, got {outcome!r:.200}"
            expect(outcome is None or isinstance(outcome, ArealError), told)


@rule("infer.faults.cancel_storm", law=10, spec="infer#generate")
async def cancel_storm(bench: InferBench) -> None:
    """Two hundred requests, most cancelled at any moment: the others are right, and nothing is left running."""
    draw = random.Random(0)
    async with bench.engine(max_concurrent=6) as engine:
        crowd = prompts(200, seed=40, longest=20)
        requests = bench.asks(crowd, temperature=[0.0, 1.0], max_new_tokens=lambda _: draw.randint(1, 30))
        calls = []
        for number, request in enumerate(requests):
            calls.append(bench.call(engine.generate(request)))
            if number % 3 == 0:
                await bench.turns(1)
            if number % 4:
                draw.choice(calls).cancel()
                draw.choice(calls[-5:]).cancel()
        outcomes = await bench.ended(calls, "200 requests, most cancelled, to end")
        await bench.until_shown(engine, 0, 0, "after a storm of cancellations")
    survived = expect_survivors(bench, outcomes, requests)
    expect(survived > 10, f"only {survived} of 200 requests survived: the check has nothing to look at")


@rule("infer.faults.crossing_calls", requires=("pause.keep", "weights.in_flight", "weights.staged"))
async def crossing_calls(bench: InferBench) -> None:
    """Pause, commit and resume that cross leave a running engine whose every stamp is true."""
    async with bench.engine(max_concurrent=3) as engine:
        await told_engine(bench, engine)
        requests = bench.asks(prompts(5, seed=41), max_new_tokens=400)
        calls = bench.start(engine, requests)
        for number in range(8):
            version = await bench.serving(engine) + 1
            await engine.receive_weights(teller(bench, version).offer(version), version)
            commit, pause, resume = engine.commit_weights(version), engine.pause(PauseMode.KEEP), engine.resume()
            orders = (
                (commit, pause, resume),
                (pause, commit, resume),
                (pause, resume, commit),
                (resume, pause, commit),
            )
            outcomes = await bench.ended([bench.call(call) for call in orders[number % 4]], "crossing calls to end")
            errors = [outcome for outcome in outcomes if outcome is not None]
            expect(not errors, f"pause, commit and resume that cross must all return, raised {errors}")
            expect(await bench.serving(engine) == version, f"{version} was committed, status shows another version")
            await engine.resume()
            await bench.until_generated(engine, 6)
        results = await harvest(bench, engine, calls)
        all_true_to_versions(results, requests)


@rule("infer.faults.crossing_updates", requires=("weights.staged",))
async def crossing_updates(bench: InferBench) -> None:
    """Two transfers at once never mix: what a later commit serves is one of them, whole."""
    two, three = bench.weights(bench.model(seed=5)), bench.weights(bench.model(seed=6))
    async with bench.engine() as engine:
        for first, second in ((two, three), (three, two)):
            version = await bench.serving(engine) + 1
            offers = ((first, version), (second, version + 1))
            calls = [bench.call(engine.receive_weights(weights.offer(number), number)) for weights, number in offers]
            outcomes = await bench.ended(calls, "two transfers at once")
            for (weights, number), outcome in zip(offers, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    expect(isinstance(outcome, ArealError), f"a refused transfer must say why, raised {outcome!r}")
                    continue
                try:
                    await engine.commit_weights(number)
                except WeightSyncError:
                    continue
                await computes(bench, engine, bench.model(), weights, f"version {number} of two that came at once")
            await engine.abort_weights()
            await bench.update(engine, bench.weights())


@rule("infer.faults.not_finite", law=1, spec="infer#generate")
async def not_finite(bench: InferBench) -> None:
    """Weights that are not finite never give a token with a log-prob: requests fail, and better weights heal all."""
    weights = bench.weights()
    poison = {name: tensor * float("nan") for name, tensor in weights.tensors.items()}
    request = bench.ask(5, 9, *range(2, 22), temperature=1.0)
    async with bench.engine(max_concurrent=3) as engine:
        await bench.update(engine, attrs.evolve(weights, tensors=poison))
        calls = [bench.call(engine.generate(request)) for _ in range(3)]
        for outcome in await bench.ended(calls, "requests to weights that are not finite"):
            failed = isinstance(outcome, GenerationFailed)
            expect(failed, f"NaN weights must fail the request with GenerationFailed, got {outcome!r:.200}")
        await bench.update(engine, weights)
        requests = bench.asks(prompts(5), temperature=1.0)
        results = await bench.together(engine, requests)
        for result, each in zip(results, requests, strict=True):
            expect_policy(bench, result, each, told="after the weights were finite again")


@rule("infer.faults.step", law=9, spec="infer#generate")
async def step_fails(bench: InferBench) -> None:
    """A step that fails midway fails every request by name, those that wait too; whoever comes next is served."""
    async with bench.engine(max_concurrent=3, fresh=True) as engine:
        if "step" not in bench.target.adapter.faults(engine):
            bench.notes.append("the adapter has no fault `step`: no step can be made to fail")
            return
        calls = bench.start(engine, bench.asks(prompts(5), max_new_tokens=LONG))
        await bench.until_generated(engine, 6)
        with bench.suffering(bench.fault(engine, "step")):
            outcomes = await bench.ended(calls, "requests whose step fails")
        for outcome in outcomes:
            failed = isinstance(outcome, GenerationFailed)
            expect(failed, f"a step failed, and a request under way got {outcome!r:.200}, not GenerationFailed")
        expect(all(map(str, outcomes)), "a request failed without a word")
        await bench.until_shown(engine, 0, 0, "after a step that failed")
        requests = bench.asks(prompts(5), temperature=1.0)
        results = await bench.together(engine, requests)
        for result, each in zip(results, requests, strict=True):
            expect_policy(bench, result, each, told="after a step that failed")


@rule("infer.faults.flipped_bit", spec="weights#Receipt")
async def flipped_bit(bench: InferBench) -> None:
    """One bit that flipped on the way shows in the receipt, in that tensor and no other."""
    weights = bench.weights()
    truth = {name: fingerprint(tensor) for name, tensor in weights.tensors.items()}
    async with bench.engine() as engine:
        for name in list(weights.tensors)[::5]:
            version = await bench.serving(engine) + 1
            flipped = weights.tensors[name].clone()
            flipped.view(torch.uint8).view(-1)[-1] ^= 1
            offer = weights.offer(version)
            tensors = [(each, flipped if each == name else tensor) for each, tensor in offer.tensors]
            async with bench.receiving(engine):
                receipt = await engine.receive_weights(attrs.evolve(offer, tensors=tensors), version)
                await engine.abort_weights()
            wrong = [each for each in truth if receipt.fingerprints.get(each) != truth[each]]
            expect(wrong == [name], f"a bit flipped in {name} on the way; fingerprints differ in {wrong or 'nothing'}")


@rule("infer.faults.pause_storm", law=9, spec="infer#pause")
async def pause_storm(bench: InferBench) -> None:
    """Pauses and resumes from many callers at once end, and leave an engine that serves."""
    claimed = modes(bench)
    async with bench.engine(max_concurrent=3) as engine:
        requests = bench.asks(prompts(8, seed=42), max_new_tokens=60)
        calls = bench.start(engine, requests)
        for number in range(10):
            await bench.turns(3)
            storm = [engine.pause(claimed[number % len(claimed)]), engine.resume(), engine.pause(claimed[0])]
            storm += [engine.pause(claimed[-1]), engine.pause(claimed[0])]
            outcomes = await bench.ended([bench.call(each) for each in storm], "a storm of pauses to end")
            errors = [outcome for outcome in outcomes if outcome is not None]
            expect(not errors, f"pause and resume must return, raised {errors}")
            await engine.resume()
        expect_policies(bench, zip(await bench.results(calls), requests, strict=True))
        await expect_answered(bench, engine, bench.ask(5, 9))
