"""Sleep: memory given back for real, and nothing computed until new weights have come.

Knows: sleep, wake, and the calls around them.
Does not know: how much memory it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.optional_scoring import expect_scores
from areal_conformance.checks.infer.sources import stalled
from areal_conformance.oracles.infer_judging import expect_answered, expect_policy, raises, well_formed
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError
from areal_core.contract.inference import InferenceEngine, PauseMode
from areal_torch.testing.serving import FolderWeights

SLEEP = ("memory.sleep",)
rule = partial(check, level=Level.SINGLE, spec="infer#sleep", requires=SLEEP)


def _other(bench: InferBench) -> FolderWeights:
    return FolderWeights.of(bench.model(seed=21))


async def _wake_with(bench: InferBench, engine: InferenceEngine, weights: FolderWeights) -> int:
    """Wake, receive, commit and resume; return the new version."""
    sleeper: Any = engine
    await sleeper.wake()
    version = await bench.serving(engine) + 1
    await engine.receive_weights(weights.offer(version), version)
    await engine.commit_weights(version)
    await engine.resume()
    return version


@rule("infer.sleep.round_trip", law=7)
async def round_trip(bench: InferBench) -> None:
    """After sleep, wake and an update the engine serves the new weights, again and again; both calls are idempotent."""
    sizes = [_other(bench), bench.weights(), _other(bench)]
    async with bench.engine(*SLEEP, fresh=True) as engine:
        sleeper: Any = engine
        request = bench.ask(5, 9, 7, max_new_tokens=12)
        await expect_answered(bench, engine, request)
        for weights in sizes:
            await engine.pause(bench.resting)
            for _ in range(3):
                await sleeper.sleep()
            status = await engine.status()
            expect(status.paused, f"a sleeping engine is paused; its status says {status}")
            await sleeper.wake()
            version = await _wake_with(bench, engine, weights)
            told = "after sleep, wake and an update"
            result = await expect_answered(bench, engine, request, weights=weights, told=told)
            stamped = {span.version for span in result.version_spans}
            expect(stamped == {version}, f"after waking with version {version} tokens are stamped {stamped}")


@rule("infer.sleep.only_paused", law=8)
async def only_paused(bench: InferBench) -> None:
    """sleep of an engine that is not paused is refused, and requests go on unharmed."""
    async with bench.engine(*SLEEP, fresh=True) as engine:
        sleeper: Any = engine
        request = bench.ask(5, 9, 7, max_new_tokens=100)
        call = bench.call(engine.generate(request))
        await bench.until_generated(engine, 2)
        error: Any = await raises(ArealError, sleeper.sleep, "sleep of an engine that is not paused")
        expect(error.why or error.fix, f"sleep without a pause is refused without a reason: {error}")
        expect_policy(bench, (await bench.results([call]))[0], request)


@rule("infer.sleep.computes_nothing", law=7)
async def computes_nothing(bench: InferBench) -> None:
    """From sleep until weights are committed no token is computed; generate waits or fails with a typed error."""
    async with bench.engine(*SLEEP, fresh=True) as engine:
        sleeper: Any = engine
        await engine.pause(bench.resting)
        count = (await engine.status()).tokens_generated
        await sleeper.sleep()
        requests = [bench.ask(5, 9, 7, name=f"r{n}", max_new_tokens=6) for n in range(3)]
        calls = [bench.call(engine.generate(requests[0]))]
        await _try_to_resume(engine)
        await bench.turns()
        calls.append(bench.call(engine.generate(requests[1])))
        await sleeper.wake()
        await _try_to_resume(engine)
        calls.append(bench.call(engine.generate(requests[2])))
        await bench.turns()
        computed = (await engine.status()).tokens_generated - count
        expect(computed == 0, f"{computed} tokens were computed between sleep and the next commit")
        weights = _other(bench)
        version = await _wake_with(bench, engine, weights)
        outcomes = await bench.ended(calls, "calls made during sleep to end")
    for ended, request in zip(outcomes, requests, strict=True):
        if isinstance(ended, BaseException):
            expect(isinstance(ended, ArealError), f"generate during sleep raised {type(ended).__name__}: {ended}")
            continue
        well_formed(ended, request)
        stamped = {span.version for span in ended.version_spans}
        told = "a request made during sleep"
        expect(stamped <= {version}, f"{told} has tokens of versions {stamped}, weights came with version {version}")
        expect_policy(bench, ended, request, weights=weights, told=told)


async def _try_to_resume(engine: InferenceEngine) -> None:
    try:
        await engine.resume()
    except ArealError:
        return  # refused, as it should be; an engine that merely waits is judged by the tokens it computes


@rule("infer.sleep.frozen_requests", law=1, requires=("memory.sleep", "pause.keep"))
async def frozen_requests(bench: InferBench) -> None:
    """A request frozen before sleep goes on under the new weights, its stamps true, or fails with a typed error."""
    weights = bench.weights()
    async with bench.engine("memory.sleep", "pause.keep", fresh=True) as engine:
        sleeper: Any = engine
        request = bench.ask(5, 9, 7, max_new_tokens=120)
        call = bench.call(engine.generate(request))
        await bench.until_generated(engine, 3)
        await engine.pause(PauseMode.KEEP)
        await sleeper.sleep()
        version = await _wake_with(bench, engine, weights)  # the same weights: the whole output has one truth
        ended = (await bench.ended([call], "the frozen request to end"))[0]
    if isinstance(ended, BaseException):
        expect(isinstance(ended, ArealError), f"a frozen request raised {type(ended).__name__}: {ended}")
        return
    if str(ended.stop_reason) != "aborted":
        expect(ended.version_spans[-1].version == version, f"its last tokens are stamped {ended.version_spans[-1]}")
    expect_policy(bench, ended, request, told="a request that was frozen while the engine slept")


@rule("infer.sleep.scores", law=7, requires=("memory.sleep", "scoring"))
async def scores(bench: InferBench) -> None:
    """From sleep until weights are committed nothing is scored: score waits for the new weights, or fails typed."""
    ids, weights = (5, 9, 7, 30, 8, 41), _other(bench)
    async with bench.engine("memory.sleep", "scoring", fresh=True) as engine:
        sleeper: Any = engine
        await engine.pause(bench.resting)
        await sleeper.sleep()
        calls = [bench.call(sleeper.score(ids, 1.0))]
        await bench.turns()
        await sleeper.wake()
        calls.append(bench.call(sleeper.score(ids, 1.0)))
        await bench.turns()
        await _wake_with(bench, engine, weights)
        calls.append(bench.call(sleeper.score(ids, 1.0)))
        outcomes = await bench.ended(calls, "scores asked for during sleep, and after it, to end")
    for when, ended in zip(("during sleep", "after wake", "of the new weights"), outcomes, strict=True):
        if isinstance(ended, BaseException) and when != "of the new weights":
            expect(isinstance(ended, ArealError), f"score {when} raised {type(ended).__name__}: {ended}")
            continue
        if isinstance(ended, BaseException):
            raise ended
        expect_scores(bench, ids, 1.0, ended, weights)


@rule("infer.sleep.transfer", law=7, requires=("memory.sleep", "weights.staged"))
async def transfer(bench: InferBench) -> None:
    """Weights on their way when an engine falls asleep are lost, or serve whole; the next ones always serve."""
    torn, weights = FolderWeights.of(bench.model(seed=22)), _other(bench)
    request = bench.ask(5, 9, 7, max_new_tokens=12)
    async with bench.engine(*SLEEP, fresh=True) as engine:
        sleeper: Any = engine
        await engine.pause(bench.resting)
        async with stalled(bench, engine, torn, at=3) as (_, receiving):
            sleeping = bench.call(sleeper.sleep())
            await bench.turns(20)
        (error, _) = await bench.ended([sleeping, receiving], "sleep during a transfer, and the transfer, to end")
        expect(error is None, f"sleep of a paused engine must return, raised {error!r}")
        await sleeper.wake()
        try:
            await engine.commit_weights(await bench.serving(engine) + 1)
        except ArealError as lost:
            bench.notes.append(f"the transfer is lost: {lost}")
        else:
            await engine.resume()
            await expect_answered(bench, engine, request, weights=torn, told="after a transfer that outlived sleep")
        await _wake_with(bench, engine, weights)
        await expect_answered(bench, engine, request, weights=weights, told="after sleep during a transfer")
