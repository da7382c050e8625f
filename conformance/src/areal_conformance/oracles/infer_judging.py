"""How the output of an inference engine is judged: its own consistency, its versions, its log-probs.

Knows: what every Generation must satisfy, whatever was asked.
Does not know: how it was obtained.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.outcome import Violation, expect
from areal_core.contract.data import StopReason
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine
from areal_torch.testing.serving import FolderWeights

VOCABULARY = 64
FIRST_TELLING = 2
LOGPROB_ATOL = 5e-4
"""Float32 against float32 in another order of summation, on models of two layers."""
SAME_ATOL = 2e-5
"""The same computation again, perhaps in memory aligned otherwise."""


def telling(version: int) -> int:
    """Return the token that weights of a version emit in checks that prove stamps: never the end token."""
    return FIRST_TELLING + version % (VOCABULARY - FIRST_TELLING)


def teller(bench: InferBench, version: int) -> FolderWeights:
    """Return weights that emit `telling(version)` whatever they are asked."""
    return bench.weights().tell(telling(version))


def versions_of(generation: Generation) -> list[int]:
    """Return the stamped version of every output token."""
    return [span.version for span in generation.version_spans for _ in range(span.start, span.stop)]


def well_formed(generation: Generation, request: GenerationRequest, *, vocabulary: int = VOCABULARY) -> None:
    """Expect what holds for every Generation."""
    told = f"request {request.request_id!r} of {len(request.input_ids)} prompt tokens"
    output, count = generation.output_ids, len(generation.output_ids)
    num_logprobs = len(generation.logprobs)
    expect(num_logprobs == count, f"{told}: {count} output ids need as many log-probs, got {num_logprobs}")
    in_range = all(type(token) is int and 0 <= token < vocabulary for token in output)
    expect(in_range, f"{told}: output ids must be ints in [0, {vocabulary}), got {output[:20]}")
    bad = [value for value in generation.logprobs if not (math.isfinite(value) and value <= 1e-4)]
    expect(not bad, f"{told}: log-probs must be finite and at most 0, got {bad[:5]}")
    _covered(generation, told)
    limit = request.sampling.max_new_tokens
    expect(count <= limit, f"{told}: {count} tokens came out, max_new_tokens is {limit}")
    reason = generation.stop_reason
    expect(count or reason is StopReason.ABORTED, f"{told}: no token came out, yet the stop reason is {reason}")
    times = generation.timings
    ordered = 0.0 <= times.queued_s <= times.total_s and 0.0 <= times.first_token_s <= times.total_s
    ordered &= math.isfinite(times.total_s) and (not count or times.queued_s <= times.first_token_s)
    expect(ordered, f"{told}: 0 <= queued <= first token <= total must hold, got {times}")


def _covered(generation: Generation, told: str) -> None:
    spans, count, at = generation.version_spans, len(generation.output_ids), 0
    for span in spans:
        follows = span.start == at and span.stop > span.start
        expect(follows, f"{told}: spans must cover the output without gap, overlap or empty span, got {spans}")
        at = span.stop
    expect(at == count, f"{told}: spans cover {at} of {count} tokens: {spans}")
    versions = [span.version for span in spans]
    expect(versions == sorted(versions), f"{told}: versions must never decrease, got {versions}")


def true_to_versions(generation: Generation, request: GenerationRequest) -> None:
    """Expect every token to be the one that the weights of its stamp emit (`teller`)."""
    well_formed(generation, request)
    pairs = zip(generation.output_ids, versions_of(generation), strict=True)
    for place, (token, version) in enumerate(pairs):
        due = telling(version)
        what = f"request {request.request_id!r}: token {place} of {len(generation.output_ids)}"
        told = f"is stamped version {version}, whose weights emit only {due}; it is {token}"
        expect(token == due, f"{what} {told}, which version {version + token - due} emits")


def all_true_to_versions(results: Iterable[Generation], requests: Iterable[GenerationRequest]) -> None:
    """Expect of every output what `true_to_versions` does."""
    for result, request in zip(results, requests, strict=True):
        true_to_versions(result, request)


def gap(generation: Generation, expected: Tensor) -> float:
    """Return the largest absolute difference of a Generation's log-probs from the expected ones."""
    given = torch.tensor(generation.logprobs, dtype=torch.float64)
    return float((given - expected.double()).abs().max()) if len(given) else 0.0


def expect_logprobs(bench: InferBench, generation: Generation, expected: Tensor, told: str) -> None:
    """Expect a Generation's log-probs to be the expected ones, within tolerance."""
    tolerance = bench.tolerance(atol=LOGPROB_ATOL, rtol=LOGPROB_ATOL)
    given = torch.tensor(generation.logprobs, dtype=torch.float64)
    far = (given - expected.double()).abs() - tolerance.atol - tolerance.rtol * expected.double().abs()
    if len(given) and float(far.max()) > 0:
        place = int(far.argmax())
        what = f"log-prob of token {place} of {len(given)} is {float(given[place]):.6f}"
        off = f"{int((far > 0).sum())} tokens are off by more than {tolerance.atol:g}"
        raise Violation(f"{told}: {what}, the float32 truth is {float(expected[place]):.6f}; {off}")


def expect_policy(
    bench: InferBench,
    generation: Generation,
    request: GenerationRequest,
    *,
    model: Path | None = None,
    weights: FolderWeights | None = None,
    told: str = "",
    vocabulary: int = VOCABULARY,
) -> None:
    """Expect an output to be that of a model (or other `weights` of it) for this prompt, alone and from the beginning.

    Greedy tokens must be the best ones up to the tolerance of their logits; their log-probs those of temperature 1.
    Sampled ones are judged by their log-probs.
    """
    well_formed(generation, request, vocabulary=vocabulary)
    if not generation.output_ids:
        return
    told = told or f"request {request.request_id!r}"
    tensors = None if weights is None else weights.tensors
    oracle, prompt, output = bench.oracle(model), request.input_ids, generation.output_ids
    logits = oracle.logits([*prompt, *output], tensors)[len(prompt) - 1 : -1]
    expect_drawn(bench, generation, logits, request.sampling.temperature, told)


def expect_drawn(bench: InferBench, generation: Generation, logits: Tensor, temperature: float, told: str) -> None:
    """Expect tokens and log-probs of an output to be those of logits [length, V]."""
    output = generation.output_ids
    logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
    chosen = logprobs.gather(1, torch.tensor(output).unsqueeze(1))[:, 0]
    if temperature == 0.0:
        behind = logprobs.max(-1).values - chosen
        allowed = bench.tolerance(atol=LOGPROB_ATOL).atol
        place = int(behind.argmax())
        best = f"the best one is {int(logits[place].argmax())} by {float(behind[place]):.4f} in log-probability"
        what = f"greedy token {place} of {len(output)} is {output[place]}"
        expect(float(behind[place]) <= allowed, f"{told}: {what}, {best}")
    expect_logprobs(bench, generation, chosen, told)


def expect_policies(bench: InferBench, pairs: Iterable[tuple[Generation, GenerationRequest]]) -> None:
    """Expect every output to be its own prompt's."""
    for generation, request in pairs:
        expect_policy(bench, generation, request)


async def expect_answered(
    bench: InferBench, engine: InferenceEngine, request: GenerationRequest, **truth: Any
) -> Generation:
    """Ask, expect the output of `expect_policy`, and return it. Any: what that takes."""
    result = await bench.generate(engine, request)
    expect_policy(bench, result, request, **truth)
    return result


async def counted(bench: InferBench, engine: InferenceEngine, request: GenerationRequest) -> Generation:
    """Generate for a request that is alone, and expect `status` to count what came out: prior tokens came before."""
    before = (await engine.status()).tokens_generated
    result = await bench.generate(engine, request)
    grown, made = (await engine.status()).tokens_generated - before, len(result.output_ids)
    told = f"{request.num_prior} prior tokens, {made} new ones: tokens_generated grew by {grown}"
    expect(grown == made, told)
    return result


def expect_survivors(
    bench: InferBench, outcomes: Sequence[Generation | BaseException], requests: Sequence[GenerationRequest]
) -> int:
    """Expect every call but those that were cancelled to give its own prompt's output; return how many did."""
    survived = 0
    for outcome, request in zip(outcomes, requests, strict=True):
        if isinstance(outcome, asyncio.CancelledError):
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        survived += 1
        expect_policy(bench, outcome, request)
    return survived


async def raises(expected: type[Exception], action: Callable[[], Awaitable[object]], told: str) -> Exception:
    """Expect a call to raise an error of a kind, and return it."""
    try:
        got = await action()
    except expected as error:
        return error
    except Exception as error:
        raise Violation(f"{told} must raise {expected.__name__}, raised {type(error).__name__}: {error}") from error
    raise Violation(f"{told} must raise {expected.__name__}, returned {got!r:.200}")


def same(bench: InferBench, left: Generation, right: Generation) -> bool:
    """Tell whether two greedy outputs are the same ids, and their log-probs the same but for the last bits.

    Equal bytes in other memory may be summed in another order, so bits are for `deterministic` engines alone.
    """
    if left.output_ids != right.output_ids:
        return False
    allowed = bench.tolerance(atol=SAME_ATOL).atol
    return all(abs(a - b) <= allowed for a, b in zip(left.logprobs, right.logprobs, strict=True))


def rest_of(request: GenerationRequest, output: Sequence[int], cut: int) -> GenerationRequest:
    """Return the request that continues one after the first `cut` tokens of its output, within its budget."""
    return attrs.evolve(
        request,
        request_id=RequestId(f"{request.request_id}+{cut}"),
        input_ids=(*request.input_ids, *output[:cut]),
        num_prior=cut,
        sampling=attrs.evolve(request.sampling, max_new_tokens=request.sampling.max_new_tokens - cut),
    )


def prompts(count: int, *, seed: int = 0, longest: int = 40) -> list[tuple[int, ...]]:
    """Return varied prompts, the same every time: lengths 1 and `longest` among them, some sharing a beginning."""
    draw = random.Random(seed)
    made: list[tuple[int, ...]] = []
    for number in range(count):
        length = {0: 1, 1: longest}.get(number, draw.randint(1, longest))
        ids = tuple(draw.randrange(2, VOCABULARY) for _ in range(length))
        shared: Sequence[int] = made[-1][: length // 2] if number % 3 == 2 else ()
        made.append((*shared, *ids)[:length])
    return made
