"""The truth of a pair: what a model folder computes, read and run without either engine, and what replicas hold.

Knows: the float32 oracle, safetensors, and the witness of an engine that lives in this process.
Does not know: how weights travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_conformance.benches.infer_truth import Oracle
from areal_conformance.benches.pair import PROMPTS, Pair, PairBench
from areal_conformance.benches.pair_workers import InProcessWorker
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation

ATOL = 2e-3
"""Float32 on both sides; kernels differ in the order of sums."""
LOOSE = 0.15
"""Where a side has no float32."""


def atol(bench: PairBench) -> float:
    """Return how far apart log-probs may be."""
    single = bench.train.adapter.dtypes[0] == bench.infer.adapter.dtypes[0] == "float32"
    return bench.tolerance(atol=ATOL if single else LOOSE).atol


def truth(folder: Path, generations: Sequence[Generation], prompts: Sequence[Sequence[int]] = PROMPTS) -> list[float]:
    """Return the log-probs a folder's model gives what was generated for the prompts, in order."""
    oracle = Oracle(folder)
    pairs = zip(prompts, generations, strict=True)
    return [told for ids, made in pairs for told in oracle.logprobs(ids, made.output_ids).tolist()]


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors that are not the same to the bit."""
    return [name for name, tensor in before.items() if not bool((tensor == after[name]).all())]


def said(generations: Sequence[Generation]) -> list[float]:
    """Return the log-probs the engine gave, in order."""
    return [logprob for generation in generations for logprob in generation.logprobs]


def gaps(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Return the differences of two lists of one length."""
    expect(len(left) == len(right), f"expected {len(left)} log-probs, got {len(right)}")
    return [abs(a - b) for a, b in zip(left, right, strict=True)]


def gap(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the largest difference of two lists of one length."""
    return max(gaps(left, right), default=0.0)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of a model folder."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


async def expect_serves(bench: PairBench, pair: Pair, folder: Path, version: int, when: str) -> list[Generation]:
    """Expect every replica to serve the policy of a folder, as this version."""
    first: list[Generation] = []
    for worker in pair.replicas:
        # Sampled text that only this policy would rate so: tokens differ from its favourites.
        generations = await pair.generate(worker=worker, temperature=1.0, max_new_tokens=10)
        difference, allowed = gap(said(generations), truth(folder, generations)), atol(bench)
        off = f"up to {difference:.2e} off those of the weights it should serve (tolerance {allowed:g})"
        expect(difference <= allowed, f"{when}: {worker.id} gives log-probs {off}")
        stamps = sorted({span.version for one in generations for span in one.version_spans})
        expect(stamps == [version], f"{when}: {worker.id} stamps versions {stamps}, expected {version}")
        status = await worker.call("status", timeout_s=30.0)
        expect(status.version == version, f"{when}: {worker.id} reports version {status.version}, expected {version}")
        first = first or generations
    return first


def held(bench: PairBench, worker: object) -> dict[str, Tensor]:
    """Return a replica's weights by its witness, where it has one and lives in this process."""
    if not isinstance(worker, InProcessWorker):
        return {}
    seen = bench.infer.adapter.witness(worker.service.engine)  # type: ignore[attr-defined]
    return {} if seen is None else dict(seen.tensors())


def expect_holds(bench: PairBench, pair: Pair, tensors: Mapping[str, Tensor], when: str) -> None:
    """Expect every replica that can be looked into to hold these tensors, bit for bit where the dtype is theirs."""
    for worker in pair.replicas:
        own = held(bench, worker)
        shared = {name: (own[name], tensors[name]) for name in own if name in tensors}
        wrong = [name for name, (one, other) in shared.items() if not torch.equal(one.to(other.dtype), other)]
        expect(not wrong, f"{when}: {worker.id} holds other bytes than the trainer in {wrong[:4]}")
