"""What must change no output changes none, whatever a request asks for and whichever way it is computed.

Knows: a crowd of every word a target claims, some continued, with stop strings and adapters among them; pauses, updates
of the same bytes, scores, neighbours that go or are refused.
Does not know: what each word of a request means alone, or what an update with other bytes does (`versions`, `cache`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from torch import Tensor

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.checks.infer.cache import RECOMPUTED
from areal_conformance.checks.infer.combined import STOPS, crowd
from areal_conformance.checks.infer.sampling import judge_output
from areal_conformance.checks.infer.sampling_ends import END
from areal_conformance.oracles.adapters import write_adapter
from areal_conformance.oracles.infer_judging import VOCABULARY, versions_of
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, PauseMode

LENGTH = 24
COUNT = 24
MOST = 8
"""Times a crowd is disturbed; a fast engine has answered before."""
PRIOR = (40, 44, 41, 55, 41)
"""Tokens that some requests of a crowd have generated before."""
MEANWHILE = ("pause.keep", "weights.in_flight")
FACTS: dict[str, Any] = {"level": Level.SINGLE, "law": 1, "spec": "infer#sampling", "since": (1, 2)}
"""What is the same for all of these checks. Any: as `check` takes it."""

Way = Callable[[InferBench, InferenceEngine, int], Awaitable[None]]
"""Disturbs an engine once more."""


def asked_of(bench: InferBench) -> list[GenerationRequest]:
    """Return a crowd, some with stop strings, some of one prompt, some continued: those that no engine may refuse."""
    made: list[GenerationRequest] = []
    for number, request in enumerate(crowd(bench, COUNT)):
        sampling = attrs.evolve(request.sampling, max_new_tokens=LENGTH)
        if number % 4 == 3 and not sampling.min_new_tokens and bench.target.claimed("sampling.stop_strings"):
            text = bench.tokenizer().decode
            sampling = attrs.evolve(sampling, stop=tuple(text([token], skip_special_tokens=False) for token in STOPS))
        plain = not (sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1)
        prior = PRIOR if plain and number % 3 == 1 else ()
        ids = made[-3].input_ids if number % 6 == 5 else (*request.input_ids, *prior)  # neither has prior tokens
        made.append(attrs.evolve(request, input_ids=ids, num_prior=len(prior), sampling=sampling))
    return made


def judge(
    bench: InferBench, request: GenerationRequest, result: Generation, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Expect an output to be drawn as asked, and to end at the first token that may end it."""
    sampling, output = request.sampling, result.output_ids
    early = max(0, sampling.min_new_tokens - request.num_prior)
    forbidden = (*sampling.stop_token_ids, END)
    judge_output(bench, request, result, forbidden=forbidden, until=early, tensors=tensors)
    text = partial(bench.tokenizer().decode, skip_special_tokens=False)
    ends = {token for token in {*output} if any(string in text([token]) for string in sampling.stop)}
    ends |= {*sampling.stop_token_ids, END}
    due = next((place + 1 for place, token in enumerate(output) if token in ends and place >= early), LENGTH)
    reason = StopReason.STOP if output and output[-1] in ends else StopReason.LENGTH
    got, told = (len(output), result.stop_reason), f"request {request.request_id!r}, {request.num_prior} prior tokens"
    expect(got == (due, reason), f"{told}, {sampling}: {(due, str(reason))} of {output} are due, got {got}")


async def disturb(bench: InferBench, engine: InferenceEngine, number: int) -> None:
    """Do what must change no output; at first an update, while most of a crowd is still to be generated."""
    await engine.pause(PauseMode.KEEP)
    neighbour = bench.call(engine.generate(bench.ask(*range(2, 9 + number), name="gone", max_new_tokens=LONG)))
    if number % 2:
        await engine.resume()
        await bench.update(engine, bench.weights())
    else:
        await bench.update(engine, bench.weights())
        await engine.resume()
    with contextlib.suppress(ArealError):
        await engine.generate(bench.ask(5, VOCABULARY, name="refused"))
    if bench.target.claimed("scoring"):
        scorer: Any = engine  # Any: an optional protocol
        await scorer.score((5, 9, 7, 30), 1.0)
    neighbour.cancel()
    await asyncio.gather(neighbour, return_exceptions=True)


async def sleep(bench: InferBench, engine: InferenceEngine, _number: int) -> None:
    """Sleep, and come back with the same bytes."""
    sleeper: Any = engine  # Any: an optional protocol
    await engine.pause(PauseMode.KEEP)
    await sleeper.sleep()
    await sleeper.wake()
    await bench.update(engine, bench.weights())
    await engine.resume()


async def answers(
    bench: InferBench, engine: InferenceEngine, asked: Sequence[GenerationRequest], way: Way = disturb
) -> Sequence[Generation | BaseException]:
    """Return what becomes of a crowd that comes during a pause, and is disturbed from its first tokens to its end."""
    await engine.pause(PauseMode.KEEP)
    calls = bench.start(engine, asked)
    await bench.turns(20)
    await engine.resume()
    await bench.until_generated(engine, len(asked))
    number = 0
    while number < MOST and not all(call.done() for call in calls):
        await way(bench, engine, number)
        await bench.turns(3)
        number += 1
    bench.numbers["disturbed"] = number
    return await bench.ended(calls, "a crowd that is disturbed to end")


def judge_all(
    bench: InferBench,
    asked: Sequence[GenerationRequest],
    outcomes: Sequence[Generation | BaseException],
    made: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> None:
    """Expect every request to be answered as it asks, by its adapter's weights where those are told."""
    for request, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        judge(bench, request, outcome, None if made is None else made.get(request.adapter))


@family(
    "infer.disturbed.{mode}",
    {
        "kept": Row("as an engine goes by itself", ()),
        "deterministic": Row("in deterministic mode", ("deterministic",), requires=("deterministic", *MEANWHILE)),
        "recomputed": Row("where updates have the cache made anew", (RECOMPUTED,)),
    },
    requires=MEANWHILE,
    **FACTS,
)
async def alike(bench: InferBench, claims: tuple[str, ...]) -> None:
    """Whatever a request asks for, pauses, updates of the same bytes and neighbours change nothing, {...}."""
    if RECOMPUTED in claims and RECOMPUTED not in bench.target.adapter.options:
        bench.notes.append(f"the adapter has no options {RECOMPUTED!r}: the cache is always kept, or never")
        return
    async with bench.engine(*claims) as engine:
        asked = asked_of(bench)
        judge_all(bench, asked, await answers(bench, engine, asked))


@check("infer.disturbed.asleep", **{**FACTS, "spec": "infer#sleep"}, requires=("memory.sleep", *MEANWHILE))
async def asleep(bench: InferBench) -> None:
    """What is frozen while an engine sleeps and goes on afterwards, under the same bytes, is answered as it asks."""
    async with bench.engine("memory.sleep", fresh=True) as engine:
        asked = asked_of(bench)
        outcomes = await answers(bench, engine, asked, sleep)
    whole = [
        (one, outcome)
        for one, outcome in zip(asked, outcomes, strict=True)
        if not isinstance(outcome, ArealError)
        and not (isinstance(outcome, Generation) and outcome.stop_reason is StopReason.ABORTED)
    ]
    judge_all(bench, [one for one, _ in whole], [outcome for _, outcome in whole])


@check("infer.disturbed.adapters", **{**FACTS, "spec": "infer#adapters"}, requires=("lora.adapters", *MEANWHILE))
async def adapters(bench: InferBench) -> None:
    """With adapters and without, side by side, pauses, updates of the same bytes and neighbours change nothing."""
    base, made = bench.weights().tensors, dict[str, Mapping[str, Tensor]]()
    for seed, name in enumerate("ab"):
        shape: dict[str, Any] = {"rank": 4, "alpha": 16.0, "targets": ("q_proj", "v_proj")}
        made[name] = write_adapter(bench.folder / name, base, seed=seed, **shape)
    names = ("", *made)
    asked = [attrs.evolve(one, adapter=names[number % 3]) for number, one in enumerate(asked_of(bench))]
    for claims in (({RECOMPUTED} & {*bench.target.adapter.options}), {"deterministic"}):
        if not all(claim == RECOMPUTED or bench.target.claimed(claim) for claim in claims):
            continue
        async with bench.engine("lora.adapters", *claims, fresh=True) as engine:
            server: Any = engine  # Any: an optional protocol
            for version, name in enumerate(made, start=3):
                await server.load_adapter(name, bench.folder / name, version)
            outcomes = await answers(bench, engine, asked)
        judge_all(bench, asked, outcomes, made)
        for request, outcome in zip(asked, outcomes, strict=True):
            if request.adapter and isinstance(outcome, Generation):
                stamped, due = {*versions_of(outcome)}, 3 + [*made].index(request.adapter)
                told = f"request {request.request_id!r} with adapter version {due} is stamped {stamped}"
                expect(stamped == {due}, told)
