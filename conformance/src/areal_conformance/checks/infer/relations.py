"""The same request draws alike, whatever it is called and whoever is about; other requests draw apart.

Knows: ways to ask the same that must not change an answer, and names that must not make two requests one.
Does not know: which answer is right (`sampling`), or an engine that claims `deterministic` (`sampling_seeds`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import attrs

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, Row, family
from areal_conformance.oracles.infer_judging import prompts
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, PauseMode

NUM_REQUESTS = 8
SILENCE_S = 1.2
ATOL = 1e-3
"""Between log-probs of the same token; engines may batch otherwise."""
FAR = "a-request-of-a-run-whose-name-is-longer-than-any-buffer-for-names-that-somebody-thought-would-do/"
rule = partial(family, level=Level.SINGLE, law=1, spec="infer#sampling")

Way = Callable[[InferBench, InferenceEngine, list[GenerationRequest]], Awaitable[list[Generation]]]
"""Asks the same, and returns the answers in the order of the requests."""


def named(request: GenerationRequest, name: str) -> GenerationRequest:
    """Return the request under another id."""
    return attrs.evolve(request, request_id=RequestId(name))


async def renamed(bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask under long names that differ in their last letter, then under names of one letter."""
    long = await bench.together(engine, [named(one, f"{FAR}{number}") for number, one in enumerate(asked)])
    short = await bench.together(engine, [named(one, "abcdefgh"[number]) for number, one in enumerate(asked)])
    same = [one.output_ids for one in long] == [one.output_ids for one in short]
    expect(same, "long names and short names gave other tokens")
    return long


async def after_silence(bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask after a second in which nothing was asked."""
    await asyncio.sleep(SILENCE_S)
    return await bench.together(engine, asked)


async def beside_twins(bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask each twice under one id; the longer twin is cancelled while its sister is at work, or waits."""
    twins = []
    for request in asked:
        longer = attrs.evolve(request, sampling=attrs.evolve(request.sampling, max_new_tokens=LONG))
        twins.append(bench.call(engine.generate(longer)))
    await bench.until_generated(engine, NUM_REQUESTS)
    calls = bench.start(engine, asked)
    for number, twin in enumerate(twins):
        await bench.turns(3)
        twin.cancel()
        if number % 3 == 0:
            await bench.ended([twin], "a request that was cancelled to end")
    return await bench.results(calls)


async def after_refusals(
    bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]
) -> list[Generation]:
    """Ask while requests that nobody can serve are refused before, between and behind."""
    found = []
    for number, request in enumerate(asked):
        bad = bench.ask(*([] if number % 2 else [5, 10**6]), name=str(request.request_id))
        refused = bench.call(engine.generate(bad))
        call = bench.call(engine.generate(request))
        (error,) = await bench.ended([refused], "an unfit request to be refused")
        expect(isinstance(error, ArealError), f"an unfit request was answered with {error!r}")
        found.append(call)
    return await bench.results(found)


async def over_replicas(bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask every other request of a second replica."""
    async with bench.engine(replica=1) as other:
        turns = [engine if number // 2 % 2 else other for number in range(len(asked))]  # greedy and drawn to each
        pairs = zip(turns, asked, strict=True)
        return await bench.results([bench.call(one.generate(request)) for one, request in pairs])


async def after_updates(bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask after other weights came and went: the bytes are those of before, the version is another."""
    for weights in (bench.weights(bench.model(seed=5)), bench.weights()):
        await bench.update(engine, weights)
    return await bench.together(engine, asked)


async def after_abort(bench: InferBench, engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask after a pause cut the same requests, made longer, short: those that ran and those that waited."""
    longer = [
        attrs.evolve(one, sampling=attrs.evolve(one.sampling, max_new_tokens=LONG)) for one in (*asked, *asked, *asked)
    ]
    calls = bench.start(engine, longer)
    await bench.until_generated(engine, NUM_REQUESTS)
    await engine.pause(PauseMode.ABORT)
    await bench.results(calls)
    await engine.resume()
    return await bench.together(engine, asked)


@rule(
    "infer.same.{way}",
    {
        "renamed": Row("under other ids, long ones that differ in their end only", renamed),
        "after_silence": Row("after a second in which nothing was asked", after_silence),
        "beside_twins": Row("beside a request of the same id and prompt that is cancelled", beside_twins),
        "after_refusals": Row("among requests that are refused", after_refusals),
        "over_replicas": Row("of two replicas, each given half of them", over_replicas),
        "after_updates": Row("after updates that end with the bytes of before", after_updates),
        "after_abort": Row("after a pause that cut the same short", after_abort, requires=("pause.abort",)),
    },
)
async def alike(bench: InferBench, way: Way) -> None:
    """Greedy and seeded requests get the answers they got before, asked {...}."""
    heats: Sequence[float] = [0.0, 1.0] if bench.target.claimed("sampling.seed") else [0.0]
    async with bench.engine() as engine:
        lengths = [12 + 5 * number for number in range(NUM_REQUESTS)]
        ids = prompts(NUM_REQUESTS, seed=33, longest=24)
        asked = bench.asks(ids, temperature=list(heats), max_new_tokens=lengths, seed=700)
        before = await bench.together(engine, asked)
        after = await way(bench, engine, asked)
        last = await bench.together(engine, asked)
    allowed = bench.tolerance(atol=ATOL).atol
    for when, answers in (("then", after), ("asked again behind it", last)):
        for number, (one, other) in enumerate(zip(before, answers, strict=True)):
            told = f"request {number} at temperature {asked[number].sampling.temperature:g}, {when}"
            expect(other.output_ids == one.output_ids, f"{told}: {other.output_ids}, before {one.output_ids}")
            gaps = [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
            expect(max(gaps) <= allowed, f"{told}: log-probs {max(gaps):.1e} from those before")


PROMPT = (5, 9, 7)
MEMBERS = 12
NAMES: Mapping[str, Callable[[int], str]] = {
    "that end alike": lambda number: f"{number}/{FAR}",
    "that begin alike": lambda number: f"{FAR}{number}",
    "of the same letters": lambda number: f"{number % 4}{number // 4}/0/{number // 4}{number % 4}",
    "of which each begins with another": lambda number: "t" * (number + 1),
    "of the turns of an episode": lambda number: f"train/0/3#0.0:{number}",
    "of members that are tried again": lambda number: f"train/0/3#{number % 4}.{number // 4 + 1}:0",
}
"""Ids that must not share a stream, told by what they have in common."""


async def members(bench: InferBench) -> list[tuple[str, GenerationRequest, Generation]]:
    """Ask one prompt under names that are nearly the same."""
    async with bench.engine() as engine:
        kinds = [(kind, name(number)) for kind, name in NAMES.items() for number in range(MEMBERS)]
        request = bench.ask(*PROMPT, temperature=1.0, max_new_tokens=24)
        asked = [named(request, name) for _, name in kinds]
        answers = await bench.together(engine, asked)
    return [(kind, one, answer) for (kind, _), one, answer in zip(kinds, asked, answers, strict=True)]


async def replicas(bench: InferBench) -> list[tuple[str, GenerationRequest, Generation]]:
    """Ask two replicas of one seed for the same prompt, in the same order, under the names a fleet would give."""
    found = []
    for replica in (0, 1):
        async with bench.engine(fresh=True, replica=replica) as engine:
            for number in range(MEMBERS // 2):
                request = bench.ask(*PROMPT, name=f"t/0/{2 * number + replica}", temperature=1.0, max_new_tokens=24)
                found.append((f"of replica {replica}", request, await bench.generate(engine, request)))
    return found


Asked = Callable[[InferBench], Awaitable[list[tuple[str, GenerationRequest, Generation]]]]


@rule(
    "infer.apart.{who}",
    {
        "members": Row("Requests of one prompt without a seed are drawn apart, however much their ids share.", members),
        "replicas": Row("Requests of one prompt without a seed are drawn apart by two replicas too.", replicas),
    },
)
async def apart(bench: InferBench, asked: Asked) -> None:
    """No two requests share a stream of random numbers."""
    seen: dict[tuple[int, ...], str] = {}
    for kind, request, answer in await asked(bench):
        who = f"{request.request_id!r}, {kind}"
        first = seen.setdefault(answer.output_ids, who)
        expect(first is who, f"{first}, and {who}, without a seed: both drew the 24 tokens {answer.output_ids}")
