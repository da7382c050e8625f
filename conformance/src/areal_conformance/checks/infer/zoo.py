"""Models drawn from what families can be like, generated from as transformers would, also after an update.

Knows: which drawn models a backend claims, and what of a folder must not reach sampling.
Does not know: families (`areal_conformance.zoo`), or how an engine builds or loads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, Row, family
from areal_conformance.checks.infer.budgets import MEAN
from areal_conformance.oracles.infer_judging import expect_policy
from areal_conformance.outcome import Violation, expect
from areal_conformance.zoo.architectures import ARCHITECTURES
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import claimed, unclaimed, unnamed
from areal_conformance.zoo.traits import VOCABULARY, Drawn
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError, CapabilityError, ModelError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine

SPEC = "infer#areal_core.contract.inference.InferenceSpec"
NEW_TOKENS, FIRST_FEW = 8, 3
LONG = tuple(3 + (7 * place) % 53 for place in range(70))
PROMPTS = ((5, 9, 30), LONG, (41, 12, 7, 55, 20, 33, 2), LONG[3:40])


@family(
    "infer.zoo.{architecture}",
    {name: Row(f"Models of type {name}, whatever their folder says,", name) for name in ARCHITECTURES},
    level=Level.SINGLE,
    law=8,
    spec=SPEC,
    deadline_s=120.0,
)
async def drawn(bench: InferBench, architecture: str) -> None:
    """{...} generate what transformers computes and nothing else, or are refused at the start if not claimed."""
    for model in claimed(bench.target, architecture):
        await generates(bench, model)
    for model in unclaimed(bench.target, architecture):
        if not await refused(bench, model):
            await generates(bench, model)
            bench.notes.append(unnamed(model))


async def refused(bench: InferBench, model: Drawn) -> bool:
    """Tell whether an engine refuses a model when it starts; expect of a refusal that it says why."""
    engine = bench.new()
    try:
        await engine.start(bench.spec(model=folder_of(model)))
    except (ModelError, CapabilityError) as error:
        expect(bool(error.why or error.fix), f"{model} is refused without a reason")
        return True
    except ArealError as error:
        kinds = "ModelError or CapabilityError"
        raise Violation(f"{model} is refused with {type(error).__name__}, not with {kinds}: {error}") from error
    finally:
        await engine.close()
    return False


async def generates(bench: InferBench, model: Drawn) -> None:
    """Expect greedy and sampled outputs of a model to be its own, with its weights and after an update with others."""
    async with bench.engine(model=folder_of(model), fresh=True) as engine:
        await greedy(bench, engine, model, PROMPTS, str(model))
        await sampled(bench, engine, model)
        other = attrs.evolve(model, seed=model.seed + 1000)
        await bench.update(engine, bench.weights(folder_of(other)))
        await greedy(bench, engine, other, PROMPTS[:2], f"{model}, updated")


async def greedy(
    bench: InferBench, engine: InferenceEngine, weights: Drawn, prompts: Sequence[tuple[int, ...]], told: str
) -> None:
    """Expect greedy outputs to be those of a model."""
    for request in bench.asks(prompts, name="greedy", temperature=0.0, max_new_tokens=NEW_TOKENS):
        judged(bench, await bench.generate(engine, request), request, weights, told)


async def sampled(bench: InferBench, engine: InferenceEngine, model: Drawn) -> None:
    """Expect sampled outputs to be of the whole distribution at the temperature asked for, and as long as asked for.

    Requests of other lengths run beside each: a model whose places depend on the longest of them is not that model.
    """
    told, ranks = str(model), list[int]()
    requests = bench.asks(PROMPTS[:3], name="sampled", temperature=1.0, max_new_tokens=2 * NEW_TOKENS)
    for result, request in zip(await bench.together(engine, requests), requests, strict=True):
        judged(bench, result, request, model, told)
        ranks += ranks_of(bench, result, request, model)
    if len(ranks) >= 2 * NEW_TOKENS:
        what = f"all of {len(ranks)} tokens sampled at temperature 1 are among the {FIRST_FEW} most probable"
        expect(max(ranks) >= FIRST_FEW, f"{told}: {what}; nothing but the temperature was asked for")


def judged(bench: InferBench, result: Generation, request: GenerationRequest, weights: Drawn, told: str) -> None:
    """Expect tokens and log-probs of an output to be those of the model, and its length to be what was asked for."""
    vocabulary = VOCABULARY[weights["vocabulary"] or "usual"]
    what = f"{told}, {request.request_id}"
    expect_policy(bench, result, request, model=folder_of(weights), told=what, vocabulary=vocabulary)
    count, limit = len(result.output_ids), request.sampling.max_new_tokens
    whole = count == limit if result.stop_reason is StopReason.LENGTH else result.output_ids[-1:] == (1,)
    expect(whole, f"{what}: {count} of {limit} tokens came, stop reason {result.stop_reason}")
    near_float64(bench, result, request, weights, what)


def near_float64(bench: InferBench, result: Generation, request: GenerationRequest, weights: Drawn, told: str) -> None:
    """Expect the log-probs of an output to keep, in float64, the budget of a float32 run."""
    truth = bench.oracle(folder_of(weights), torch.float64)
    wanted = truth.logprobs(request.input_ids, result.output_ids, temperature=request.sampling.temperature or 1.0)
    error = float((torch.tensor(result.logprobs, dtype=torch.float64) - wanted).abs().mean())
    allowed = bench.tolerance(atol=MEAN).atol
    expect(error <= allowed, f"{told}: log-probs are {error:.1e} from float64 on average, at most {allowed:g}")


def ranks_of(bench: InferBench, result: Generation, request: GenerationRequest, weights: Drawn) -> list[int]:
    """Return the place of each token of an output among all by probability, 0 for the most probable."""
    prompt, output = request.input_ids, result.output_ids
    logits = bench.oracle(folder_of(weights)).logits([*prompt, *output])[len(prompt) - 1 : -1]
    return [int((row > row[token]).sum()) for row, token in zip(logits, output, strict=True)]
