"""What replicas hold, looked at behind the contract: every tensor of the trainer's, and no other bytes.

Knows: the witness of an engine that lives in this process.
Does not know: what is served (`judging`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from areal_conformance.benches.pair import Pair, PairBench
from areal_conformance.benches.pair_workers import SeatedWorker
from areal_conformance.outcome import expect


def held(bench: PairBench, worker: object) -> dict[str, Tensor]:
    """Return a replica's weights by its witness, where it has one and lives in this process."""
    if not isinstance(worker, SeatedWorker):
        return {}
    seen = bench.infer.adapter.witness(worker.seat._engine)  # type: ignore[attr-defined]
    return {} if seen is None else dict(seen.tensors())


def expect_holds(bench: PairBench, pair: Pair, tensors: Mapping[str, Tensor], when: str) -> None:
    """Expect every replica that can be looked into to hold these tensors, bit for bit where the dtype is theirs."""
    for worker in pair.replicas:
        own = held(bench, worker)
        shared = {name: (own[name], tensors[name]) for name in own if name in tensors}
        wrong = [name for name, (one, other) in shared.items() if not torch.equal(one.to(other.dtype), other)]
        expect(not wrong, f"{when}: {worker.id} holds other bytes than the trainer in {wrong[:4]}")
