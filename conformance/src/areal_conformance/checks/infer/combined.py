"""What a request asks holds whichever way the engine goes: in deterministic mode, and with an adapter beside others.

Knows: a crowd in which every request asks for something else, and which way each is computed.
Does not know: what each word of a request means alone (`sampling`, `sampling_ends`, `sampling_penalties`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import hot, judge_output
from areal_conformance.checks.infer.sampling_ends import END
from areal_conformance.oracles.adapters import write_adapter
from areal_conformance.oracles.infer_judging import prompts
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest

STOPS = tuple(range(3, 64, 9))
LENGTH = 14
LONGEST = 90
"""Of the prompts: engines go other ways for long ones."""
ASKED: Sequence[tuple[str, dict[str, Any]]] = (
    ("penalties", {"frequency_penalty": 1.6}),
    ("", {"temperature": 0.6}),
    ("repetition_penalty", {"repetition_penalty": 1.9, "temperature": 0.0}),
    ("top_k", {"top_k": 3, "temperature": 1.5}),
    ("stop_tokens", {"stop_token_ids": STOPS}),
    ("penalties", {"presence_penalty": 1.8, "temperature": 0.0}),
    ("top_p", {"top_p": 0.6}),
    ("min_tokens", {"stop_token_ids": STOPS, "min_new_tokens": 9}),
    ("min_p", {"min_p": 0.2}),
    ("min_p", {"min_p": 0.5, "temperature": 0.0}),
    ("top_k", {"top_k": 2, "temperature": 0.0}),
    ("top_p", {"top_p": 0.3, "temperature": 0.0}),
    ("repetition_penalty", {"repetition_penalty": 0.5, "frequency_penalty": -0.5}),
)
"""Ability -> what is asked. Any: fields of SamplingParams. None leaves much to a neighbour with other words."""
_NEEDED = {"stop_token_ids": "stop_tokens", "frequency_penalty": "penalties"}
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#sampling", since=(1, 2))


def crowd(bench: InferBench, count: int) -> list[GenerationRequest]:
    """Return requests of which each asks for what the target claims, in turn, after prompts of many lengths."""
    cases = [case for ability, case in ASKED if _claimed(bench, ability, case)]
    return [
        bench.ask(*ids, name=f"{number}", **{"max_new_tokens": LENGTH, **hot(cases[number % len(cases)])},
                  **bench.seeded(80 + number))
        for number, ids in enumerate(prompts(count, seed=61, longest=LONGEST))
    ]  # fmt: skip


def _claimed(bench: InferBench, ability: str, case: Mapping[str, Any]) -> bool:
    needed = {ability, *(claim for word, claim in _NEEDED.items() if word in case)} - {""}
    return all(bench.target.claimed(f"sampling.{name}") for name in needed)


def judge(
    bench: InferBench, request: GenerationRequest, result: Generation, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Expect an output to be drawn as asked, by these weights, and to end at the first stop token that may end it."""
    sampling = request.sampling
    least, stops = sampling.min_new_tokens, sampling.stop_token_ids
    judge_output(bench, request, result, forbidden=(*stops, END), until=least, tensors=tensors)
    output = result.output_ids
    due = next((place + 1 for place, token in enumerate(output) if token in stops), LENGTH)
    reason = StopReason.STOP if output[-1] in stops else StopReason.LENGTH
    got, told = (len(output), result.stop_reason), f"request {request.request_id!r}, which stops at {stops}"
    expect(got == (due, reason), f"{told} after {least} tokens: {(due, str(reason))} of {output} are due, got {got}")


@rule("infer.combined.deterministic", requires=("deterministic",))
async def deterministic(bench: InferBench) -> None:
    """In deterministic mode each of a crowd is drawn, penalised and ended as it asks, whatever others ask for."""
    async with bench.engine("deterministic") as engine:
        asked = crowd(bench, 2 * len(ASKED))
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        judge(bench, request, result)


@rule("infer.combined.adapters", requires=("lora.adapters",), spec="infer#adapters")
async def adapters(bench: InferBench) -> None:
    """With adapters and without, side by side, each request is drawn, penalised and ended as it asks."""
    base, made = bench.weights().tensors, dict[str, Mapping[str, Tensor]]()
    async with bench.engine("lora.adapters", fresh=True) as engine:
        server: Any = engine  # Any: an optional protocol
        for seed, name in enumerate("ab"):
            shape: dict[str, Any] = {"rank": 4, "alpha": 16.0, "targets": ("q_proj", "v_proj")}
            made[name] = write_adapter(bench.folder / name, base, seed=seed, **shape)
            await server.load_adapter(name, bench.folder / name, 3 + seed)
        names = ("", "a", "b")
        asked = [
            attrs.evolve(request, adapter=names[number % 3])
            for number, request in enumerate(crowd(bench, 3 * len(ASKED)))
        ]
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        judge(bench, request, result, made.get(request.adapter))
