"""The trace of experts: which ones computed each output token.

Knows: models with experts, the layout of `routed_experts`.
Does not know: how a trainer uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.experts import Routers
from areal_conformance.oracles.infer_judging import prompts, well_formed
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest, PauseMode
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.fleet.continuation import Continuation
from areal_torch.testing.serving import FolderWeights

TRACE = ("experts.trace",)
KIND = "qwen3_moe"
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#experts", requires=TRACE)


def model_with_experts(bench: InferBench, *, seed: int = 0) -> Path:
    """Return the folder of a tiny model with experts; Inconclusive if the target takes none."""
    if KIND not in bench.target.adapter.models:
        raise Inconclusive(f"the adapter's models are {', '.join(bench.target.adapter.models)}: none has experts")
    return bench.model(kind=KIND, seed=seed)


def _expect_trace(routers: Routers, prompt: Sequence[int], result: Generation, told: str) -> None:
    """Expect the rows of a trace to be the experts of the forward passes the tokens were drawn from."""
    count = len(result.output_ids)
    trace: Any = result.token_extras.get(ROUTED_EXPERTS)
    expect(isinstance(trace, torch.Tensor), f"{told}: token_extras[{ROUTED_EXPERTS!r}] is {type(trace).__name__}")
    wanted = routers.routes([*prompt, *result.output_ids])
    experts, decided = wanted.experts[len(prompt) - 1 : -1], wanted.decided[len(prompt) - 1 : -1]
    shape = (count, *experts.shape[1:])
    got = f"got {trace.dtype} {list(trace.shape)}"
    fits = trace.dtype == torch.int32 and tuple(trace.shape) == shape
    expect(fits, f"{told}: a trace of {count} tokens is int32 {list(shape)}, {got}")
    wrong = (trace.cpu().long().sort(-1).values != experts).any(-1) & decided
    if bool(wrong.any()):
        token, layer = (int(number) for number in wrong.nonzero()[0])
        given, right = trace[token, layer].tolist(), experts[token, layer].tolist()
        raise Violation(
            f"{told}: output token {token} of {count}, layer {layer}: experts {sorted(given)} are reported, "
            f"{right} computed it; {int(wrong.any(-1).sum())} tokens are wrong"
        )


def _requests(bench: InferBench, *, count: int, length: int) -> list[GenerationRequest]:
    lengths = [length + more for more in (0, 3, 6, 9)]
    return bench.asks(prompts(count, seed=19, longest=25), temperature=[0.0, 1.0], max_new_tokens=lengths)


@rule("infer.experts.trace")
async def trace(bench: InferBench) -> None:
    """Every output token comes with the experts that computed it, alone and in a batch, the first and last included."""
    folder = model_with_experts(bench)
    routers = Routers(folder)
    async with bench.engine(*TRACE, model=folder, fresh=True) as engine:
        requests = [*_requests(bench, count=6, length=9), bench.ask(5, 9, name="one", max_new_tokens=1)]
        alone = [await engine.generate(request) for request in requests]
        together = await asyncio.gather(*(engine.generate(request) for request in requests))
    for told, results in (("alone", alone), ("in a batch", together)):
        for request, result in zip(requests, results, strict=True):
            well_formed(result, request)
            _expect_trace(routers, request.input_ids, result, f"request {request.request_id!r} {told}")


@rule("infer.experts.after_update")
async def after_update(bench: InferBench) -> None:
    """After an update the trace is of the new weights, for prompts known from before too."""
    folder, other = model_with_experts(bench), model_with_experts(bench, seed=21)
    async with bench.engine(*TRACE, model=folder, fresh=True) as engine:
        requests = _requests(bench, count=3, length=8)
        for request in requests:
            await engine.generate(request)
        await bench.update(engine, FolderWeights(load_file(other / "model.safetensors"), {}))
        for request in requests:
            result = await engine.generate(request)
            _expect_trace(Routers(other), request.input_ids, result, f"{request.request_id!r} after an update")


@rule("infer.experts.paused", requires=("experts.trace", "pause.keep"))
async def paused(bench: InferBench) -> None:
    """A pause leaves no hole in the trace of what it froze."""
    folder = model_with_experts(bench)
    async with bench.engine("experts.trace", "pause.keep", model=folder, fresh=True) as engine:
        requests = _requests(bench, count=3, length=40)
        calls = bench.start(engine, requests)
        await bench.freeze(engine, times=3, after=7)
        results = await bench.results(calls)
    for request, result in zip(requests, results, strict=True):
        _expect_trace(Routers(folder), request.input_ids, result, f"{request.request_id!r} after three pauses")


@rule("infer.experts.continued", requires=("experts.trace", "pause.abort"))
async def continued(bench: InferBench) -> None:
    """A request aborted and continued, as the pool does it, has the whole trace: no row is missing or twice there."""
    folder = model_with_experts(bench)
    async with bench.engine("experts.trace", "pause.abort", model=folder, fresh=True) as engine:
        requests = _requests(bench, count=3, length=50)
        whole = [Continuation(request) for request in requests]
        results: list[Generation | None] = [None] * len(requests)
        for turn in range(4):
            calls = {
                number: bench.call(engine.generate(continuation.next_request()))
                for number, continuation in enumerate(whole)
                if results[number] is None
            }
            if turn < 3:
                await bench.until_generated(engine, 12)
                await engine.pause(PauseMode.ABORT)
            for number, part in zip(calls, await bench.results(calls.values()), strict=True):
                results[number] = whole[number].add(part)
            await engine.resume()
    routers = Routers(folder)
    for request, result in zip(requests, results, strict=True):
        if result is None or result.stop_reason is not StopReason.LENGTH:
            raise Violation("a continued request must come to its end")
        _expect_trace(routers, request.input_ids, result, f"{request.request_id!r} aborted and continued")
