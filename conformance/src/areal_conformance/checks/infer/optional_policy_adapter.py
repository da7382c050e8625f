"""Claim `weights.adapter`: each version of the policy is an adapter over the folder's weights, received and committed.

Knows: adapters of several shapes, updates that follow each other, break off, do not fit, or meet running requests.
Does not know: how an engine applies an adapter; adapters that requests name (`optional_adapters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from safetensors.torch import load_file
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.benches.infer_truth import Segment
from areal_conformance.check import Level, check
from areal_conformance.oracles.adapters import EVERY_LAYER, write_adapter
from areal_conformance.oracles.infer_judging import (
    LOGPROB_ATOL,
    expect_answered,
    expect_policy,
    raises,
    versions_of,
    well_formed,
)
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, CoverageError, VersionRegressed, WeightSyncError
from areal_core.contract.inference import Generation, InferenceEngine
from areal_core.contract.train import LoraSpec
from areal_core.weights.tensors import fingerprint
from areal_torch.testing.serving import FolderWeights

_check = partial(
    check, level=Level.SINGLE, law=7, spec="infer#weights-adapter", requires=("weights.adapter",), since=(1, 3)
)
LORA = LoraSpec(rank=4, alpha=16.0, targets=("q_proj", "v_proj"))
OTHER = LoraSpec(rank=2, alpha=8.0, targets=("o_proj",))
CASES = (LORA, LoraSpec(rank=2, alpha=2.5, targets=EVERY_LAYER))
PROMPT = (5, 9, 7, 30)


@frozen(kw_only=True)
class Made:
    """An adapter: its folder, what a trainer would send of it, and the weights it amounts to."""

    path: Path
    sent: FolderWeights
    merged: FolderWeights


def make(bench: InferBench, name: str, *, seed: int, lora: LoraSpec = LORA) -> Made:
    path, base = bench.folder / name, bench.weights()
    shape: dict[str, Any] = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
    merged = write_adapter(path, base.tensors, seed=seed, **shape)
    sent = FolderWeights(load_file(path / "adapter_model.safetensors"), {})
    return Made(path=path, sent=sent, merged=FolderWeights(merged, dict(base.tied)))


async def serves(bench: InferBench, engine: InferenceEngine, made: Made | None, version: int, told: str) -> None:
    """Expect what is asked now to be computed with an adapter, None for the folder's weights, and so stamped."""
    weights = None if made is None else made.merged
    for heat in (0.0, 1.0):
        request = bench.ask(*PROMPT, temperature=heat, max_new_tokens=12)
        got = await expect_answered(bench, engine, request, weights=weights, told=told)
        stamps = {*versions_of(got)}
        expect(stamps == {version}, f"{told}: version {version} serves, the stamps are {stamps}")
    stated = await bench.serving(engine)
    expect(stated == version, f"{told}: version {version} serves, status says {stated}")


@_check("infer.policy_adapter.replaces")
async def replaces(bench: InferBench) -> None:
    """Each version is the folder's weights and its own adapter, W + (alpha / rank) B A, and nothing of the last."""
    for number, lora in enumerate(CASES):
        async with bench.engine(lora=lora) as engine:
            version = await bench.serving(engine)
            await serves(bench, engine, None, version, "before any update")
            for seed in (1, 2):
                made = make(bench, f"case-{number}-{seed}", seed=seed, lora=lora)
                version = await bench.update(engine, made.sent)
                await serves(bench, engine, made, version, f"adapter {seed} on {', '.join(lora.targets)}, committed")


@_check("infer.policy_adapter.receipt")
async def receipt(bench: InferBench) -> None:
    """The receipt has the fingerprint of every A and B as it was sent, and of nothing else."""
    made = make(bench, "made", seed=1)
    async with bench.engine(lora=LORA) as engine:
        version = await bench.serving(engine) + 1
        got = await bench.take(engine, made.sent.offer(version), version)
    wanted = {name: fingerprint(tensor) for name, tensor in made.sent.tensors.items()}
    odd = sorted(name for name in {*wanted, *got.fingerprints} if wanted.get(name) != got.fingerprints.get(name))
    expect(not odd, f"the receipt and what was sent differ in {', '.join(odd[:4])}")
    size = sum(tensor.nbytes for tensor in made.sent.tensors.values())
    expect(got.version == version and got.num_bytes == size, f"version {version}, {size} bytes were sent, got {got}")


@_check("infer.policy_adapter.two_phase", requires=("weights.adapter", "weights.staged"))
async def two_phase(bench: InferBench) -> None:
    """What is received serves after its commit; aborted, it never does, not even when its number comes again."""
    first, second, third = (make(bench, f"v{seed}", seed=seed) for seed in (1, 2, 3))
    async with bench.engine(lora=LORA) as engine:
        old = await bench.update(engine, first.sent)
        await engine.receive_weights(second.sent.offer(old + 1), old + 1)
        await serves(bench, engine, first, old, "the next one received, not committed")
        await engine.abort_weights()
        await serves(bench, engine, first, old, "the next one aborted")
        await raises(WeightSyncError, partial(engine.commit_weights, old + 1), "commit of an aborted version")
        await bench.take(engine, third.sent.offer(old + 1), old + 1)
        await serves(bench, engine, third, old + 1, "the number of an aborted one, received anew")


@_check("infer.policy_adapter.regressed")
async def regressed(bench: InferBench) -> None:
    """A version not newer than the one serving is refused, and one never received is not committed."""
    made, other = make(bench, "made", seed=1), make(bench, "other", seed=2)
    async with bench.engine(lora=LORA) as engine:
        version = await bench.update(engine, made.sent)
        for wrong in (version, 0):
            async with bench.receiving(engine):
                receive = partial(engine.receive_weights, other.sent.offer(wrong), wrong)
                await raises(VersionRegressed, receive, f"version {wrong} offered while {version} serves")
        await raises(WeightSyncError, partial(engine.commit_weights, version + 1), "commit of a version never received")
        await serves(bench, engine, made, version, "after refusals")


@_check("infer.policy_adapter.coverage")
async def coverage(bench: InferBench) -> None:
    """Every A and B of the layers named, each of its shape, and nothing else: any other update is refused whole."""
    good, made = make(bench, "good", seed=1), make(bench, "made", seed=2)
    async with bench.engine(lora=LORA) as engine:
        version = await bench.update(engine, good.sent)
        for told, tensors in unfit(bench, made.sent.tensors).items():
            source = FolderWeights(dict(tensors), {}).offer(version + 1)
            async with bench.receiving(engine):
                receive = partial(engine.receive_weights, source, version + 1)
                await raises(CoverageError, receive, f"an update with {told}")
            await serves(bench, engine, good, version, f"an update with {told} refused")
        await bench.take(engine, made.sent.offer(version + 1), version + 1)
        await serves(bench, engine, made, version + 1, "a good update after bad ones")


def unfit(bench: InferBench, good: Mapping[str, Tensor]) -> dict[str, Mapping[str, Tensor]]:
    """Return updates that do not fit, by what is wrong with them."""
    last = max(name for name in good if name.endswith("lora_B.weight"))
    renamed = {name.replace("layers.1", "layers.7"): tensor for name, tensor in good.items()}
    return {
        "an A without its B": {name: tensor for name, tensor in good.items() if name != last},
        "a layer the model lacks": renamed,
        "a layer no target names": {**good, last.replace("v_proj", "o_proj"): good[last].clone()},
        "another rank": {n: t.repeat(2, 1) if "lora_A" in n else t.repeat(1, 2) for n, t in good.items()},
        "a B turned around": {**good, last: good[last].T.contiguous()},
        "whole weights": bench.weights().tensors,
    }


@_check("infer.policy_adapter.in_flight", law=1)
async def in_flight(bench: InferBench) -> None:
    """A request that runs over a commit ends with true stamps, or comes back `aborted` with what it has."""
    first, second = make(bench, "first", seed=1), make(bench, "second", seed=2)
    async with bench.engine(lora=LORA) as engine:
        old = await bench.update(engine, first.sent)
        requests = bench.asks([PROMPT, (7,), (11, 30, 2)], temperature=0.0, max_new_tokens=100)
        calls = bench.start(engine, requests)
        await bench.until_generated(engine, 6)
        await bench.take(engine, second.sent.offer(old + 1), old + 1)
        outcomes = await bench.ended(calls, "requests over whose run an adapter was committed to end")
        await serves(bench, engine, second, old + 1, "committed over running requests")
    for request, ended in zip(requests, outcomes, strict=True):
        if isinstance(ended, BaseException):
            raise Violation(f"request {request.request_id!r} raised {type(ended).__name__}: {ended}")
        well_formed(ended, request)
        stamps = versions_of(ended)
        expect({*stamps} <= {old, old + 1}, f"stamps are of versions {old} and {old + 1}, got {ended.version_spans}")
        cut = sum(stamp == old for stamp in stamps)
        off = off_truth(bench, request.input_ids, ended, cut, first.merged.tensors, second.merged.tensors)
        allowed = bench.tolerance(atol=LOGPROB_ATOL).atol
        what = f"{cut} of {len(stamps)} tokens are stamped {old}, the others {old + 1}"
        expect(off <= allowed, f"{what}: log-probs are up to {off:.4f} off those of the adapters stamped")


def off_truth(
    bench: InferBench,
    prompt: Sequence[int],
    made: Generation,
    cut: int,
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
) -> float:
    """Return how far log-probs are from those of `old` up to `cut` and `new` from it on, with keys kept or anew."""
    oracle, output = bench.oracle(), made.output_ids
    given = torch.tensor(made.logprobs)
    if not output:
        return 0.0
    anew = [oracle.logprobs(prompt, output, weights=weights) for weights in (old, new)]
    truths = [torch.cat([anew[0][:cut], anew[1][cut:]])]
    if 0 < cut < len(output):
        truths.append(oracle.kept(prompt, output, [Segment(0, cut, old), Segment(cut, len(output), new)]))
    return min(float((given - truth).abs().max()) for truth in truths)


@_check("infer.policy_adapter.begins")
async def begins(bench: InferBench) -> None:
    """With `path`, version 0 is that folder's adapter, and the next one takes its place; an unfit one is refused."""
    made, other = make(bench, "made", seed=1), make(bench, "other", seed=2)
    lora = attrs.evolve(LORA, path=str(made.path))
    async with bench.engine(lora=lora, fresh=True) as engine:
        await serves(bench, engine, made, 0, "an engine that begins with an adapter")
        version = await bench.update(engine, other.sent)
        await serves(bench, engine, other, version, "the version after the adapter it began with")
    foreign = make(bench, "foreign", seed=3, lora=attrs.evolve(LORA, targets=("down_proj",)))
    for told, path in {"of other layers": foreign.path, "that is not there": bench.folder / "nowhere"}.items():
        spec = bench.spec(lora=attrs.evolve(LORA, path=str(path)))
        await raises(ArealError, partial(bench.new().start, spec), f"an engine that is to begin with an adapter {told}")


@_check("infer.policy_adapter.scored", law=1, requires=("weights.adapter", "scoring"))
async def scored(bench: InferBench) -> None:
    """Scores are those of the policy: the folder's weights and the adapter committed last."""
    made = make(bench, "made", seed=1)
    ids = [*PROMPT, 12, 3, 44, 8]
    async with bench.engine("scoring", lora=LORA) as engine:
        server: Any = engine  # Any: an optional protocol
        for weights in (None, made):
            if weights is not None:
                await bench.update(engine, weights.sent)
            logits = bench.oracle().logits(ids, None if weights is None else weights.merged.tensors)
            logprobs = torch.log_softmax(logits[:-1].double(), -1)
            wanted = [float(row[token]) for row, token in zip(logprobs, ids[1:], strict=True)]
            got = list(await server.score(ids, 1.0))[1:]
            off = max(abs(a - b) for a, b in zip(got, wanted, strict=True))
            told = "before" if weights is None else "after"
            allowed = bench.tolerance(atol=2e-3).atol
            expect(off <= allowed, f"scores {told} the first update are up to {off:.4f} off those of the policy")


@_check("infer.policy_adapter.beside_named", law=1, requires=("weights.adapter", "lora.adapters"))
async def beside_named(bench: InferBench) -> None:
    """An adapter that a request names is over the folder's weights, whatever the policy is, and leaves that alone."""
    policy, named = make(bench, "policy", seed=1), make(bench, "named", seed=2, lora=OTHER)
    async with bench.engine("lora.adapters", lora=LORA, fresh=True) as engine:
        server: Any = engine  # Any: an optional protocol
        await server.load_adapter("mine", named.path, 7)
        version = await bench.update(engine, policy.sent)
        request = attrs.evolve(bench.ask(*PROMPT, max_new_tokens=12), adapter="mine")
        got = await bench.generate(engine, request)
        expect_policy(bench, got, request, weights=named.merged, told="a request that names an adapter")
        expect({*versions_of(got)} == {7}, f"it must be stamped with its adapter's version 7, got {got.version_spans}")
        await serves(bench, engine, policy, version, "beside a named adapter")
        await server.unload_adapter("mine")
        await serves(bench, engine, policy, version, "after a named adapter was unloaded")


@_check("infer.policy_adapter.sleeps", requires=("weights.adapter", "memory.sleep"))
async def sleeps(bench: InferBench) -> None:
    """After sleep and wake the adapter that is committed then serves, over the folder's weights, again and again."""
    made = [make(bench, f"v{seed}", seed=seed) for seed in (1, 2, 3)]
    async with bench.engine("memory.sleep", lora=LORA, fresh=True) as engine:
        sleeper: Any = engine  # Any: an optional protocol
        await bench.update(engine, made[0].sent)
        for number, one in enumerate(made[1:], start=1):
            await engine.pause(bench.resting)
            await sleeper.sleep()
            await sleeper.wake()
            version = await bench.serving(engine) + 1
            await engine.receive_weights(one.sent.offer(version), version)
            await engine.commit_weights(version)
            await engine.resume()
            await serves(bench, engine, one, version, f"committed after sleep number {number}")
