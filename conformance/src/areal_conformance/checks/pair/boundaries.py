"""Tokens around an update in flight: each log-prob is that of the weights its stamp names, to the very token.

Knows: the weights the trainer saved for each version, and what a cache that is kept or made anew gives.
Does not know: how an engine swaps weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from areal_conformance.benches.infer_truth import Oracle, Segment
from areal_conformance.benches.pair import PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import atol, tensors_of
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.inference import Generation, PauseMode
from areal_core.contract.scheduler import Worker

KEPT = "weights.kv_kept"
UPDATES = 3
TOKENS = 180
STEPS = 12
"""Tokens the replica computes, over all requests, between two updates."""
RUNNING: tuple[tuple[int, ...], ...] = ((5, 9, 12), (7,), (20, 3, 3, 41, 8, 2, 17), (11, 30))


@check("pair.versions.boundary", level=Level.LOOP, law=1, spec="infer", deadline_s=180.0)
async def boundary(bench: PairBench) -> None:
    """Through several updates each token's log-prob is that of the version it is stamped with, at the boundary too."""
    async with bench.pair(lr=0.02, infer_claims=(KEPT,) if bench.infer.claimed(KEPT) else ()) as pair:
        batch = pair.batch(await pair.generate(RUNNING, temperature=1.0), RUNNING)
        versions = {pair.sync.version: tensors_of(await pair.saved(bench.folder / "start"))}
        calls = asyncio.ensure_future(pair.generate(RUNNING, temperature=1.0, max_new_tokens=TOKENS))
        for number in range(UPDATES):
            await _computed(pair.replicas[0], STEPS * len(RUNNING))
            await pair.step(batch)
            saved = await pair.saved(bench.folder / f"stepped-{number}")
            versions[(await pair.update()).version] = tensors_of(saved)
        generations = await calls
        _judge(bench, pair.model, versions, generations)


def _judge(
    bench: PairBench, model: Path, versions: Mapping[int, Mapping[str, Tensor]], generations: list[Generation]
) -> None:
    oracle, allowed = Oracle(model), atol(bench)
    # An interrupted request is asked anew with the tokens it has: whatever was cached is gone.
    kept = bench.infer.claimed(KEPT) and bench.pause is not PauseMode.ABORT
    told_apart = 0
    for prompt, one in zip(RUNNING, generations, strict=True):
        spans, ids = one.version_spans, one.output_ids
        stamps = [span.version for span in spans]
        strange = [stamp for stamp in stamps if stamp not in versions]
        expect(not strange, f"tokens are stamped with versions {strange}; there were {sorted(versions)}")
        alone = {v: oracle.logprobs(prompt, ids, weights=versions[v]).tolist() for v in {*stamps}}
        if kept:
            segments = [Segment(span.start, span.stop, versions[span.version]) for span in spans]
            wanted = oracle.kept(prompt, ids, segments).tolist()
        else:
            wanted = [alone[span.version][place] for span in spans for place in range(span.start, span.stop)]
        gaps = [abs(said - told) for said, told in zip(one.logprobs, wanted, strict=True)]
        off = [place for place, difference in enumerate(gaps) if not difference <= allowed]
        place = off[0] if off else 0
        stamp = next((span.version for span in spans if span.start <= place < span.stop), -1)
        others = {v: f"{logprobs[place]:.4f}" for v, logprobs in sorted(alone.items())}
        expect(
            not off,
            f"of {len(ids)} tokens in spans {[(s.start, s.stop, s.version) for s in spans]}, {len(off)} have another "
            f"log-prob than the version they are stamped with, cache {'kept' if kept else 'made anew'}: token {place}, "
            f"stamped {stamp}, was sampled with {one.logprobs[place]:.4f}, its version gives "
            f"{wanted[place] if wanted else 0:.4f}; each version's weights alone: {others}",
        )
        edges = [span.start for span in spans[1:]]
        told_apart += sum(
            abs(alone[before.version][edge] - alone[after.version][edge]) > 10 * allowed
            and abs(alone[before.version][edge - 1] - alone[after.version][edge - 1]) > 10 * allowed
            for before, after, edge in zip(spans, spans[1:], edges, strict=False)
        )
    bench.numbers["boundaries"] = float(told_apart)
    if told_apart < UPDATES:
        raise Inconclusive(f"only {told_apart} boundaries lie between tokens that both versions rate differently")


async def _computed(worker: Worker, tokens: int) -> None:
    """Let the loop turn until a replica has computed so many tokens more, or has nothing to do."""
    goal = None
    while True:
        status = await worker.call("status", timeout_s=30.0)
        goal = status.tokens_generated + tokens if goal is None else goal
        if status.tokens_generated >= goal or not status.num_running:
            return
        await asyncio.sleep(0)
