"""Version stamps, proved: weights of version v emit one token that tells v, so that a stamp cannot lie unseen.

Knows: `judging.teller`, requests that live through updates, any order of calls (`machines.versions`).
Does not know: what is refused in phase one (`coverage`), or values of log-probs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.pause import Started, started
from areal_conformance.machines import versions
from areal_conformance.machines.examples import examples
from areal_conformance.oracles.infer_judging import (
    all_true_to_versions,
    prompts,
    teller,
    telling,
    true_to_versions,
    versions_of,
)
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.inference import Generation, InferenceEngine, PauseMode

SHORT = 600
"""Tokens asked for where requests cannot be cut short: they must live through a few updates and then end."""
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#weights")


async def told_engine(bench: InferBench, engine: InferenceEngine) -> int:
    """Give an engine telling weights as its next version and return that."""
    return await bench.update(engine, teller(bench, await bench.serving(engine) + 1))


def lasting(bench: InferBench) -> int:
    """Return how many tokens to ask for when a request shall outlive some updates and is then harvested."""
    return LONG if bench.target.claimed("pause.abort") else SHORT


async def harvest(
    bench: InferBench, engine: InferenceEngine, calls: Sequence[asyncio.Task[Generation]]
) -> list[Generation]:
    """Return the outputs of calls: cut short by a pause where that is claimed, else at their end."""
    if bench.target.claimed("pause.abort"):
        await engine.pause(PauseMode.ABORT)
        results = await bench.results(calls)
        await engine.resume()
        return results
    return await bench.results(calls)


def start_all(bench: InferBench, engine: InferenceEngine, count: int) -> Started:
    """Start `count` lasting requests of different prompts."""
    return started(bench, engine, count, tokens=lasting(bench), seed=11)


@rule("infer.versions.at_rest", law=7)
async def at_rest(bench: InferBench) -> None:
    """After each commit, and not before, requests and `status` carry the new version; numbers may be skipped."""
    async with bench.engine() as engine:
        version = await bench.serving(engine)
        for step in (1, 1, 5, 2, 11):
            version += step
            await bench.take(engine, teller(bench, version).offer(version), version)
            stated = await bench.serving(engine)
            expect(stated == version, f"version {version} was committed, status shows {stated}")
            for temperature in (0.0, 1.0):
                request = bench.ask(5, 9, temperature=temperature)
                result = await bench.generate(engine, request)
                stamps = set(versions_of(result))
                expect(stamps == {version}, f"version {version} was committed before, the output is stamped {stamps}")
                true_to_versions(result, request)


@rule("infer.versions.same_bytes")
async def same_bytes(bench: InferBench) -> None:
    """Weights equal to those serving, byte for byte, are a version of their own."""
    async with bench.engine() as engine:
        for _ in range(3):
            version = await bench.update(engine, bench.weights())
            result = await bench.generate(engine, bench.ask(5, 9))
            seen = {*versions_of(result), await bench.serving(engine)}
            expect(seen == {version}, f"version {version} was committed; output and status say {sorted(seen)}")


@rule("infer.versions.in_flight", requires=("weights.in_flight",))
async def in_flight(bench: InferBench) -> None:
    """A request that lives through updates is stamped, token by token, with the version that computed each."""
    async with bench.engine() as engine:
        first = await told_engine(bench, engine)
        requests, calls = start_all(bench, engine, 6)
        for _ in range(4):
            await bench.until_generated(engine, 30)
            await told_engine(bench, engine)
        await bench.until_generated(engine, 30)
        results = await harvest(bench, engine, calls)
    all_true_to_versions(results, requests)
    most = max(len(result.version_spans) for result in results)
    if most < 2:
        raise Inconclusive("every request ended before the first update: the engine is too fast for this check")
    if bench.target.claimed("pause.abort"):
        wanted = list(range(first, first + 5))
        for result in results:
            got = [span.version for span in result.version_spans]
            expect(got == wanted, f"a request that lived through versions {wanted} is stamped {got}")


@rule("infer.versions.from_next_token", law=7, requires=("weights.in_flight",))
async def from_next_token(bench: InferBench) -> None:
    """From the next token after `commit_weights` returned, no token is computed by the old weights."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        start = (await engine.status()).tokens_generated
        requests, calls = start_all(bench, engine, 4)
        await bench.until_generated(engine, 16)
        await bench.update(engine, teller(bench, old + 1))
        upto = (await engine.status()).tokens_generated - start
        await bench.until_generated(engine, 24)
        results = await harvest(bench, engine, calls)
    all_true_to_versions(results, requests)
    late = sum(versions_of(result).count(old) for result in results)
    told = f"when commit returned {upto} tokens had been generated, yet {late} were made by the old weights"
    expect(late <= upto + len(calls), told)


@rule("infer.versions.many_in_one", requires=("weights.in_flight",))
async def many_in_one(bench: InferBench) -> None:
    """One request lives through eight updates, some a single token apart, and every stamp is true."""
    async with bench.engine() as engine:
        await told_engine(bench, engine)
        request = bench.ask(5, 9, max_new_tokens=lasting(bench))
        call = bench.call(engine.generate(request))
        for number in range(8):
            await bench.until_generated(engine, 1 + number % 3)
            await told_engine(bench, engine)
        await bench.until_generated(engine, 1)
        result = (await harvest(bench, engine, [call]))[0]
    true_to_versions(result, request)
    if len(result.version_spans) < 2:
        raise Inconclusive("the request ended before the second version: the engine is too fast for this check")


@rule("infer.versions.new_requests", law=7)
async def new_requests(bench: InferBench) -> None:
    """A request that comes after a commit never meets the old weights, also if its prompt was served before."""
    ids = tuple(2 + place % 60 for place in range(33))
    keep = bench.target.claimed("weights.in_flight")
    async with bench.engine() as engine:
        await told_engine(bench, engine)
        for number in range(4):
            requests = [bench.ask(*ids, name=f"{number}-{n}", max_new_tokens=5 + n) for n in range(3)]
            background = bench.ask(*ids, name="background", max_new_tokens=LONG)
            running = bench.call(engine.generate(background)) if keep else None
            await bench.together(engine, requests)
            version = await told_engine(bench, engine)
            results = await bench.together(engine, requests)
            if running is not None:
                running.cancel()
            for result, request in zip(results, requests, strict=True):
                true_to_versions(result, request)
                stamps, told = set(versions_of(result)), f"asked after version {version} was committed"
                expect(stamps == {version}, f"{told}, the output is stamped {stamps}")


@rule("infer.versions.queued", requires=("weights.in_flight",))
async def queued(bench: InferBench) -> None:
    """A request that waits for a slot through an update is computed by, and stamped with, the new version only."""
    async with bench.engine(max_concurrent=1) as engine:
        await told_engine(bench, engine)
        running = bench.call(engine.generate(bench.ask(5, name="running", max_new_tokens=LONG)))
        await bench.until_generated(engine, 5)
        requests = [bench.ask(5, 9, n, name=f"queued-{n}", max_new_tokens=6) for n in (3, 4, 5)]
        calls = bench.start(engine, requests)
        await bench.until_generated(engine, 5)
        version = 0
        for _ in range(2):
            version = await told_engine(bench, engine)
        running.cancel()
        results = await bench.results(calls)
    for result, request in zip(results, requests, strict=True):
        true_to_versions(result, request)
        stamps = set(versions_of(result))
        expect(stamps == {version}, f"computed wholly after the commit of {version}, the output is stamped {stamps}")


@rule("infer.versions.while_paused", spec="infer#pause", requires=("pause.keep", "weights.in_flight"))
async def while_paused(bench: InferBench) -> None:
    """Updates during a pause show exactly at the token where the pause was; the version that never computed, never."""
    for updates in (1, 2):
        async with bench.engine() as engine:
            old = await told_engine(bench, engine)
            start = (await engine.status()).tokens_generated
            requests, calls = start_all(bench, engine, 3)
            await bench.until_generated(engine, 20)
            await engine.pause(PauseMode.KEEP)
            cut = (await engine.status()).tokens_generated - start
            for _ in range(updates):
                version = await bench.serving(engine) + 1
                await engine.receive_weights(teller(bench, version).offer(version), version)
                await engine.commit_weights(version)
            waiting = bench.ask(6, 6, name="came while paused", max_new_tokens=5)
            late = bench.call(engine.generate(waiting))
            new = old + updates
            stated = await bench.serving(engine)
            expect(stated == new, f"version {new} was committed while paused, status shows {stated}")
            await engine.resume()
            await bench.until_generated(engine, 20)
            fresh = (await bench.results([late]))[0]
            results = await harvest(bench, engine, calls)
        for result, request in zip([*results, fresh], [*requests, waiting], strict=True):
            true_to_versions(result, request)
            stray = set(versions_of(result)) - {old, new}
            expect(not stray, f"{updates} updates while paused: only versions {old} and {new} computed, got {stray}")
        made = sum(versions_of(result).count(old) for result in results)
        expect(made == cut, f"{cut} tokens were generated when the pause began, {made} are stamped version {old}")
        expect(set(versions_of(fresh)) == {new}, f"a request that came while paused is stamped {versions_of(fresh)}")


@rule("infer.versions.aborted", spec="infer#pause", requires=("pause.abort",))
async def aborted(bench: InferBench) -> None:
    """What a pause returns early carries true stamps, and its continuation the version that continues it."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        requests, calls = start_all(bench, engine, 3)
        await bench.until_generated(engine, 12)
        await engine.pause(PauseMode.ABORT)
        parts = await bench.results(calls)
        new = old + 1
        await engine.receive_weights(teller(bench, new).offer(new), new)
        await engine.commit_weights(new)
        await engine.resume()
        for part, request in zip(parts, requests, strict=True):
            true_to_versions(part, request)
            expect(set(versions_of(part)) <= {old}, f"returned before the commit of {new}: {part.version_spans}")
            prior = part.output_ids[:20]
            more = bench.ask(*request.input_ids, *prior, num_prior=len(prior), max_new_tokens=6)
            rest = await bench.generate(engine, more)
            true_to_versions(rest, more)
            told = f"6 tokens of version {new} must continue it, numbered from 0; got {rest.version_spans}"
            expect(versions_of(rest) == [new] * 6, told)


@rule("infer.versions.first_token")
async def first_token(bench: InferBench) -> None:
    """Outputs of one token are stamped as truly as long ones, many at once, version after version."""
    async with bench.engine() as engine:
        for _ in range(3):
            version = await told_engine(bench, engine)
            requests = bench.asks(prompts(5), max_new_tokens=1)
            results = await bench.together(engine, requests)
            for result, request in zip(results, requests, strict=True):
                true_to_versions(result, request)
                told = f"one token {telling(version)} of version {version} was due, got {result}"
                expect((result.output_ids, versions_of(result)) == ((telling(version),), [version]), told)


SEQUENCES = 60
NEEDED = ("weights.staged", "weights.in_flight", "pause.keep", "pause.abort")


@check("infer.versions.machine", level=Level.LOOP, law=1, spec="infer#weights", requires=NEEDED, deadline_s=120.0)
async def machine(bench: InferBench) -> None:
    """Whatever the order of requests, updates, pauses and cancellations: every stamp is true, nothing is lost."""
    async with bench.engine(max_concurrent=3) as engine:
        for operations in examples(versions.operations(), count=SEQUENCES):
            await versions.VersionsMachine(bench, engine).play(operations)


@check("infer.versions.traces", level=Level.SINGLE, law=1, spec="infer#weights", requires=NEEDED)
async def traces(bench: InferBench) -> None:
    """Orders of calls that once showed a fault, each played as it was found."""
    async with bench.engine(max_concurrent=3) as engine:
        for name, operations in versions.traces().items():
            bench.notes.append(name)
            await versions.VersionsMachine(bench, engine).play(operations)
    bench.notes.clear()
