"""What holds for a few holds for many: updates, requests, tokens; memory stays flat, versions may be far apart.

Knows: lengths and crowds beyond the round numbers that buffers, blocks and tables grow at; what processes hold.
Does not know: a single update (`updates`), or what is asked of single tokens (`sampling`, `integrity`).
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from attrs import frozen

from areal_conformance.benches.infer import InferBench
from areal_conformance.benches.process import memory_bytes, num_descriptors, pooled_threads
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import IMPROBABLE
from areal_conformance.checks.infer.sampling_ends import END
from areal_conformance.oracles.infer_judging import (
    VOCABULARY,
    expect_policies,
    expect_policy,
    prompts,
    same,
    teller,
    true_to_versions,
    versions_of,
    well_formed,
)
from areal_conformance.oracles.sampling import improbability
from areal_conformance.outcome import expect
from areal_core.contract.device import CPU
from areal_core.contract.inference import Generation
from areal_torch.device import release_cache
from areal_torch.testing.serving import FolderWeights

UPDATES = 1000
WARM = 150
"""Updates before the first look: allocators and caches have their size by then."""
TINY: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "max_position": 256}
"""Arguments of `make_tiny_model`. Any: each has its own type."""


@frozen
class _Held:
    """What one process holds, or what it and its children hold more than they did."""

    memory: int = 0
    descriptors: int = 0
    threads: int = 0
    name: str = ""
    tensors: int = 0
    """Bytes of tensors that live in this process: they may grow into memory that was left free in it, and not show."""

    def beyond(self, was: _Held) -> _Held:
        """Return what is held beyond what was."""
        more = (self.memory - was.memory, self.descriptors - was.descriptors, self.threads - was.threads)
        return _Held(*more, tensors=self.tensors - was.tensors)

    def at_least_nothing(self) -> _Held:
        """Return it with 0 for what is less."""
        return _Held(max(0, self.memory), max(0, self.descriptors), max(0, self.threads))


def _held() -> dict[int, _Held]:
    """Return what this process and its children hold, each by its id.

    Memory that earlier checks left free here is given back first: what is kept could grow into it unseen.
    """
    gc.collect()
    release_cache(torch.device(CPU))
    held, own = {}, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            held[process.pid] = _Held(
                memory_bytes(process),
                num_descriptors(process),
                process.num_threads() - (pooled_threads() if process == own else 0),
                process.name(),
                _of_tensors() if process == own else 0,
            )
    return held


def _of_tensors() -> int:
    """Return the bytes of all tensors that this process has, those that share memory counted once."""
    storages = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor):
            with contextlib.suppress(Exception):  # one without a storage, or of somebody else's making
                if one.device.type == CPU and one.layout == torch.strided:
                    storage = one.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _grown(before: Mapping[int, _Held]) -> _Held:
    """Return what is held beyond what was.

    A new child takes the place of one of its name that ended, the nearest in memory, but one that holds less makes up
    for nothing; what ended besides, of an earlier check, hides no growth.
    """
    now = _held()
    ended = [each for pid, each in before.items() if pid not in now]
    grown = [
        each.beyond(before[pid]) if pid in before else each.beyond(_in_place_of(each, ended)).at_least_nothing()
        for pid, each in now.items()
    ]
    return _Held(
        sum(each.memory for each in grown),
        sum(each.descriptors for each in grown),
        sum(each.threads for each in grown),
        tensors=sum(each.tensors for each in grown),
    )


def _in_place_of(new: _Held, ended: list[_Held]) -> _Held:
    """Take from those that ended the one most like it that this new process replaces; nothing if there is none."""
    alike = [each for each in ended if each.name == new.name]
    if not alike:
        return _Held()
    same = min(alike, key=lambda each: abs(each.memory - new.memory))
    ended.remove(same)
    return same


@check("infer.many.flat", level=Level.LOOP, law=10, spec="infer#weights", deadline_s=180.0)
async def flat(bench: InferBench) -> None:
    """Over 1,000 updates with requests between them, memory, descriptors and threads stay flat."""
    folder = bench.model(**TINY)
    weights = bench.weights(folder)
    size = sum(tensor.nbytes for tensor in weights.tensors.values())
    async with bench.engine(model=folder, fresh=True) as engine:
        before = _held()
        for number in range(UPDATES):
            await bench.update(engine, weights)
            if number % 10 == 0:
                await bench.generate(engine, bench.ask(5, 9, max_new_tokens=2))
            if number == WARM:
                before = _held()
        grown = _grown(before)
    bench.numbers |= {name: float(getattr(grown, name)) for name in ("memory", "descriptors", "threads")}
    allowed, more = (UPDATES - WARM) * size // 3, max(grown.memory, grown.tensors)
    each = f"{UPDATES - WARM} updates of {size} bytes grew the process by {more}, {allowed} are allowed"
    expect(more < allowed, f"{each}: weights of old versions are kept")
    expect(grown.descriptors <= 4, f"{UPDATES - WARM} updates left {grown.descriptors} descriptors")
    expect(grown.threads <= 2, f"{UPDATES - WARM} updates left {grown.threads} threads")


@check("infer.many.requests_flat", level=Level.LOOP, law=10, spec="infer#generate", deadline_s=120.0)
async def requests_flat(bench: InferBench) -> None:
    """Over 1,500 requests, a third of them cancelled, descriptors, threads and the counters of status stay flat."""
    folder = bench.model(**TINY)
    async with bench.engine(model=folder, fresh=True, max_concurrent=8) as engine:
        before = _held()
        for number in range(75):
            calls = [bench.call(engine.generate(bench.ask(5, n, max_new_tokens=3))) for n in range(2, 22)]
            await bench.turns(1)
            for call in calls[number % 3 :: 3]:
                call.cancel()
            await bench.ended(calls, "20 requests, a third cancelled, to end")
            if number == 25:
                before = _held()
        grown, status = _grown(before), await engine.status()
    expect(grown.descriptors <= 4, f"1,000 requests left {grown.descriptors} descriptors")
    expect(grown.threads <= 2, f"1,000 requests left {grown.threads} threads")
    expect(grown.memory < 32 << 20, f"1,000 requests of 3 tokens grew the process by {grown.memory} bytes")
    expect((status.num_running, status.num_waiting) == (0, 0), f"nothing is asked for any more, status shows {status}")


@check("infer.many.no_drift", level=Level.LOOP, law=7, spec="infer#weights")
async def no_drift(bench: InferBench) -> None:
    """The same weights sent fifty times compute the same as the first time: nothing accumulates."""
    requests = bench.asks(prompts(4), max_new_tokens=12)
    async with bench.engine() as engine:
        first: list[Generation] = []
        for number in range(50):
            await bench.update(engine, bench.weights())
            if number % 7:
                continue
            results = [await bench.generate(engine, request) for request in requests]
            first = first or results
            for request, result, old in zip(requests, results, first, strict=True):
                expect_policy(bench, result, request)
                told = f"{request.request_id!r} after {number + 1} updates of equal bytes: {result}, first it was {old}"
                expect(same(bench, result, old), told)


@check("infer.many.far_apart", level=Level.LOOP, law=7, spec="infer#weights")
async def far_apart(bench: InferBench) -> None:
    """Versions may be far apart: stamps, status and receipts carry numbers up to two thousand million."""
    async with bench.engine(fresh=True) as engine:
        for version in (1, 300, 70_000, 20_000_000, 2_000_000_000):
            await bench.take(engine, teller(bench, version).offer(version), version)
            request = bench.ask(5, 9)
            result = await bench.generate(engine, request)
            true_to_versions(result, request)
            seen = {*versions_of(result), await bench.serving(engine)}
            expect(seen == {version}, f"version {version} was committed; output and status say {sorted(seen)}")


STREAM = 200
"""Random numbers looked at of each request."""
OVERLAP = 40
"""Pairs of tokens compared at the longest distance. Half of 40 agree by chance with probability below 1e-25."""


@check("infer.output.long", level=Level.SINGLE, law=1, spec="infer#generate")
async def long(bench: InferBench) -> None:
    """Far from the beginning, of a long output or after a long prompt, log-probs are the policy's as near it."""
    chosen = random.Random(41)
    lengths = ((3, 260), (140, 20), (250, 12), (508, 8), (1023, 2))
    async with bench.engine() as engine:
        asked = [
            bench.ask(
                *(chosen.randrange(2, VOCABULARY) for _ in range(prompt)),
                name=f"{prompt}+{output}",
                temperature=1.0,
                max_new_tokens=output,
                **bench.seeded(prompt),
            )
            for prompt, output in lengths
        ]
        results = await bench.together(engine, asked)
    expect_policies(bench, zip(results, asked, strict=True))
    for result, (prompt, output) in zip(results, lengths, strict=True):
        got = len(result.output_ids)
        expect(got == output, f"{output} tokens after a prompt of {prompt} were asked for, {got} came")


@check("infer.sampling.stream", level=Level.SINGLE, law=1, spec="infer#sampling")
async def stream(bench: InferBench) -> None:
    """The random numbers of a request repeat neither themselves nor another request's, and are uniform throughout."""
    folder = bench.model(layers=1)
    async with bench.engine(model=folder) as engine:
        await bench.update(engine, even(bench.weights(folder)))
        shared = [(5, 9, last) for last in (7, 8, 1000 % VOCABULARY)]
        asked = bench.asks(shared, temperature=1.0, max_new_tokens=STREAM, seed=7)
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        well_formed(result, request)
    rows = [result.output_ids for result in results]
    for one, left in enumerate(rows):
        for two, right in enumerate(rows):
            for lag in range(one == two, STREAM - OVERLAP):
                alike = sum(a == b for a, b in zip(left[lag:], right, strict=False))
                pairs = STREAM - lag
                told = f"{alike} of {pairs} tokens of request {one} are those of request {two} {lag} places before"
                expect(alike < pairs / 2, f"every token is equally likely, yet {told}: random numbers are used twice")
    likely = torch.full((VOCABULARY,), 1.0 / (VOCABULARY - 1), dtype=torch.float64)
    likely[END] = 0.0
    half = STREAM // 2
    for told, drawn in (("first", [row[:half] for row in rows]), ("second", [row[half:] for row in rows])):
        tokens = [token // 8 for row in drawn for token in row]
        shares = likely.view(-1, 8).sum(-1)
        chance = improbability(tokens, shares.log())
        counts = f"eight tokens at a time, {[tokens.count(eighth) for eighth in range(8)]} times"
        what = f"every token is equally likely; the {told} {half} of each request come, {counts}"
        expect(chance > IMPROBABLE, f"{what}, which has a chance of {chance:.1e}")


def even(weights: FolderWeights) -> FolderWeights:
    """Return weights under which every token but the end token is equally likely, whatever came before."""
    told = weights.tell(END)
    head = told.tensors["lm_head.weight"]
    head[END] = -2.0  # the hidden numbers are all 1: a logit of -2 times their number
    return told
