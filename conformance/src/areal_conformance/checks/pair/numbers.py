"""Both sides give the same tokens the same log-probs: under the version of their stamp, however long a sequence is.

Knows: the gap between what was sampled and what is trained, and the weights the trainer saved for each version.
Does not know: why it is there, or how an engine swaps weights.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from areal_conformance.benches.infer_truth import Oracle, Segment
from areal_conformance.benches.models import sharpen
from areal_conformance.benches.pair import PROMPTS, PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import LOOSE, atol, expect_serves, gap, gaps, said, tensors_of, truth
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.inference import EngineStatus, Generation, PauseMode
from areal_core.contract.scheduler import Worker


@check("pair.gap.logprobs", level=Level.LOOP, law=1, spec="train", deadline_s=120.0)
async def logprobs(bench: PairBench) -> None:
    """The trainer gives sampled tokens the log-probs they were sampled with, at any temperature, after updates too."""
    for temperature in (1.0, 0.6, 1.7):
        async with bench.pair(temperature=temperature, lr=0.03) as pair:
            for round_number in range(2):
                generations = await pair.generate(temperature=temperature, max_new_tokens=12)
                batch = pair.batch(generations)
                ids = batch.tokens["input_ids"].tolist()
                sampled = [i for p, g in zip(PROMPTS, generations, strict=True) for i in (*p, *g.output_ids)]
                expect(ids == sampled, "the trained token ids are not the sampled ones")
                differences = gaps(said(generations), (await pair.logprobs(batch)).tolist())
                bench.numbers[f"gap at {temperature:g}, round {round_number}"] = max(differences)
                _alike(differences, atol(bench), f"temperature {temperature:g}, after {round_number} updates")
                await pair.step(batch)
                await pair.update()


@check("pair.gap.dtypes", level=Level.LOOP, law=1, spec="train", deadline_s=180.0)
async def dtypes(bench: PairBench) -> None:
    """In every dtype both sides have, trainer and replica rate sampled tokens alike; the report tells how far apart."""
    both = [dtype for dtype in bench.train.adapter.dtypes if dtype in bench.infer.adapter.dtypes]
    if not both:
        raise Inconclusive("the two adapters name no dtype both sides run in")
    for dtype in both:
        async with bench.pair(train_dtype=dtype, infer_dtype=dtype, lr=0.03) as pair:
            await pair.step(pair.batch(await pair.generate(temperature=1.0)))
            await pair.update()
            generations = await pair.generate(temperature=1.0, max_new_tokens=32)
            trained = (await pair.logprobs(pair.batch(generations))).tolist()
            differences = gaps(said(generations), trained)
            bench.numbers[f"{dtype}: largest gap"] = max(differences)
            bench.numbers[f"{dtype}: mean gap"] = sum(differences) / len(differences)
            _alike(differences, atol(bench) if dtype == "float32" else LOOSE, dtype)


@check("pair.gap.packing", level=Level.LOOP, law=6, spec="train", deadline_s=120.0)
async def packing(bench: PairBench) -> None:
    """The gap is the same for sequences alone, together, in other order, and in small micro-batches."""
    async with bench.pair(microbatch=24) as small:
        generations = await small.generate(temperature=1.0, max_new_tokens=9)
        batch = small.batch(generations)
        together = (await small.logprobs(batch)).tolist()
        alone: list[float] = []
        for number, (prompt, generation) in enumerate(zip(PROMPTS, generations, strict=True)):
            one = small.batch([generation], [prompt])
            alone += (await small.logprobs(one)).tolist()
            expect(one.num_sequences == 1, f"sequence {number} was not packed alone")
        backwards = small.batch(generations[::-1], PROMPTS[::-1])
        turned = (await small.logprobs(backwards)).tolist()
        values = iter(turned)
        rows = [list(itertools.islice(values, len(generation.output_ids))) for generation in generations[::-1]]
        reordered = [value for row in rows[::-1] for value in row]
        for name, other in (("alone", alone), ("in other order", reordered), ("as sampled", said(generations))):
            difference = gap(together, other)
            bench.numbers[name] = difference
            expect(difference <= atol(bench), f"log-probs of sequences together and {name} differ by {difference:.2e}")


@check("pair.versions.stamped", level=Level.LOOP, law=1, spec="infer")
async def stamped(bench: PairBench) -> None:
    """Tokens carry the version whose weights computed them, update after update."""
    async with bench.pair(replicas=2, lr=0.05) as pair:
        batch = None
        first = pair.sync.version
        for version in (first + 1, first + 2, first + 7):
            generations = await pair.generate(temperature=1.0)
            stamps = {span.version for one in generations for span in one.version_spans}
            expect(stamps == {pair.sync.version}, f"expected version {pair.sync.version}, got {sorted(stamps)}")
            batch = pair.batch(generations)
            held, due = batch.tokens["versions"][batch.tokens["loss_mask"]].unique().tolist(), pair.sync.version
            expect(held == [due], f"the batch holds versions {held}, expected {due}")
            await pair.step(batch)
            await pair.sync.update(version)
            await pair.trainer.set_version(version)
            saved = await pair.saved(bench.folder / f"saved-{version}")
            await expect_serves(bench, pair, saved, version, f"after update {version}")


IN_FLIGHT: tuple[tuple[int, ...], ...] = ((5, 9, 12), (7,))
IN_FLIGHT_TOKENS = 160


@check("pair.versions.in_flight", level=Level.LOOP, law=1, spec="infer", deadline_s=120.0)
async def in_flight(bench: PairBench) -> None:
    """A request that runs through updates is one output whose stamps only rise, and ends on the newest version."""
    async with bench.pair(replicas=1, lr=0.05) as pair:
        batch = pair.batch(await pair.generate(temperature=1.0))
        (replica,) = pair.replicas
        late = (await _status(replica)).tokens_generated + len(IN_FLIGHT) * IN_FLIGHT_TOKENS // 2
        running = asyncio.ensure_future(pair.generate(IN_FLIGHT, temperature=1.0, max_new_tokens=IN_FLIGHT_TOKENS))
        amid = False
        for _ in range(2):
            await _computed(replica, 12)
            await pair.step(batch)
            amid |= (await _status(replica)).tokens_generated < late
            await pair.update()
        ended = await running
        for one in ended:
            stamps = [span.version for span in one.version_spans]
            expect(stamps == sorted(stamps), f"versions go back within one output: {stamps}")
            covered = [place for span in one.version_spans for place in range(span.start, span.stop)]
            expect(covered == list(range(len(one.output_ids))), f"spans {one.version_spans} do not cover the output")
            made = len(one.output_ids)
            expect(made == IN_FLIGHT_TOKENS, f"expected {IN_FLIGHT_TOKENS} tokens through two updates, got {made}")
        spread = {span.version for one in ended for span in one.version_spans}
        bench.notes.append(f"versions within one output: {sorted(spread)}")
        if len(spread) == 1 and not amid:
            raise Inconclusive("most tokens were there before an update began: the engine is too fast for this check")
        expect(len(spread) > 1, "two updates happened while requests ran, and every token carries one version")
        saved = await pair.saved(bench.folder / "saved")
        fresh = await pair.generate(temperature=1.0)
        far = gap(said(fresh), truth(saved, fresh))
        expect(far <= atol(bench), f"a new request after it is not served the new policy, but one {far:.1e} away")


def _alike(differences: Sequence[float], allowed: float, where: str) -> None:
    """Expect trainer and replica to rate every sampled token alike."""
    told = f"differ by up to {max(differences):.2e} in the log-prob of a sampled token (tolerance {allowed:g})"
    expect(max(differences) <= allowed, f"{where}: trainer and replica {told}")


SHAPES = ((60, 130), (1, 200), (33, 64), (121, 120), (17, 15), (64, 100), (90, 31))
"""Tokens of the prompt, tokens generated: together from 32 to nearly all of the context."""
ATOL = 3e-4
"""In float32. Sums over 250 tokens differ by a hundredth of it."""


def prompts() -> list[tuple[int, ...]]:
    """Return prompts of these lengths, all different from their first tokens on."""
    drawn = random.Random(11)
    return [tuple(drawn.randrange(2, 62) for _ in range(length)) for length, _ in SHAPES]


@check("pair.gap.lengths", level=Level.LOOP, law=1, spec="train", deadline_s=180.0)
async def lengths(bench: PairBench) -> None:
    """At any length, to the end of the context and many at once, both sides give each token the same log-prob."""
    single = bench.train.adapter.dtypes[0] == bench.infer.adapter.dtypes[0] == "float32"
    allowed = bench.tolerance(atol=ATOL if single else LOOSE).atol
    async with bench.pair(model=_sharp(bench), lr=0.003) as pair:
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        await pair.update()
        saved, asked = await pair.saved(bench.folder / "saved"), prompts()
        cases = zip(asked, SHAPES, strict=True)
        calls = [pair.generate((ids,), temperature=1.0, max_new_tokens=wanted) for ids, (_, wanted) in cases]
        generations = [generation for (generation,) in await asyncio.gather(*calls)]
        for number, (generation, (_, wanted)) in enumerate(zip(generations, SHAPES, strict=True)):
            got = len(generation.output_ids)
            expect(got == wanted, f"request {number} was to have {wanted} tokens and has {got}")
        trained = (await pair.logprobs(pair.batch(generations, asked))).tolist()
        right = truth(saved, generations, asked)
        for name, told in (("the trainer", trained), ("the float32 truth of its weights", right)):
            bench.numbers[f"gap to {name}"] = _judge(asked, generations, told, allowed, f"beside {name}")


def _sharp(bench: PairBench) -> Path:
    """Return the tiny model with decided attention, made once."""
    folder = bench.shared_folder / "sharp"
    if not folder.exists():
        shutil.copytree(bench.model(hidden=64), folder)
        sharpen(folder)
    return folder


def _judge(
    asked: Sequence[Sequence[int]], generations: Sequence[Generation], told: Sequence[float], allowed: float, when: str
) -> float:
    """Compare sampled log-probs with those told, token by token; return the largest difference."""
    count, worst = sum(len(generation.output_ids) for generation in generations), 0.0
    expect(len(told) == count, f"{when}: {count} tokens were sampled, {len(told)} log-probs are told")
    start = 0
    for prompt, generation in zip(asked, generations, strict=True):
        stop = start + len(generation.output_ids)
        gaps = [abs(one - other) for one, other in zip(generation.logprobs, told[start:stop], strict=True)]
        off = [place for place, difference in enumerate(gaps) if not difference <= allowed]
        place = off[0] if off else 0
        few = f"{len(off)} of {len(gaps)} tokens generated for {len(prompt)} given differ by more than {allowed:g}"
        first = f"the first, number {place}, was sampled with {generation.logprobs[place]:.5f}"
        expect(not off, f"{when}: {few} in their log-prob; {first}, told as {told[start + place]:.5f}")
        start, worst = stop, max(worst, *gaps)
    return worst


KEPT = "weights.kv_kept"
UPDATES = 3
TOKENS = 180
_LOOK_S = 0.001
"""Asking without a pause would keep the interpreter from a generator that computes in a thread of this process."""
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
        _judge_stamped(bench, pair.model, versions, generations)


def _judge_stamped(
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
        where = f"of {len(ids)} tokens in spans {[(s.start, s.stop, s.version) for s in spans]}"
        first = f"token {place}, stamped {stamp}, was sampled with {one.logprobs[place]:.4f}"
        told = f"its version gives {wanted[place] if wanted else 0:.4f}; each version's weights alone: {others}"
        how = f"their version's log-prob, cache {'kept' if kept else 'made anew'}"
        expect(not off, f"{where}, {len(off)} have not {how}: {first}, {told}")
        edges = [span.start for span in spans[1:]]
        told_apart += sum(
            abs(alone[before.version][edge] - alone[after.version][edge]) > 10 * allowed
            and abs(alone[before.version][edge - 1] - alone[after.version][edge - 1]) > 10 * allowed
            for before, after, edge in zip(spans, spans[1:], edges, strict=False)
        )
    bench.numbers["boundaries"] = float(told_apart)
    if told_apart < UPDATES:
        raise Inconclusive(f"only {told_apart} boundaries lie between tokens that both versions rate differently")


async def _status(worker: Worker) -> EngineStatus:
    status = await worker.call("status", timeout_s=30.0)
    assert isinstance(status, EngineStatus)
    return status


async def _computed(worker: Worker, tokens: int) -> None:
    """Let the loop turn until a replica has computed so many tokens more, or has nothing to do."""
    goal = None
    while True:
        status = await _status(worker)
        goal = status.tokens_generated + tokens if goal is None else goal
        if status.tokens_generated >= goal or not status.num_running:
            return
        await asyncio.sleep(_LOOK_S)
