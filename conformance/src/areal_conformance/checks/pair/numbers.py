"""Both sides give the same tokens the same log-probs, under the same version.

Knows: the gap between what was sampled and what is trained.
Does not know: why it is there.
"""

from __future__ import annotations

import asyncio

from areal_conformance.benches.pair import PROMPTS, PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import LOOSE, atol, expect_serves, gap, said, truth
from areal_conformance.outcome import Inconclusive, expect


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
                difference = gap(said(generations), (await pair.logprobs(batch)).tolist())
                bench.numbers[f"gap at {temperature:g}, round {round_number}"] = difference
                expect(
                    difference <= atol(bench),
                    f"temperature {temperature:g}, after {round_number} updates: trainer and replica differ by up to "
                    f"{difference:.2e} in the log-prob of a sampled token (tolerance {atol(bench):g})",
                )
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
            differences = [abs(a - b) for a, b in zip(said(generations), trained, strict=True)]
            bench.numbers[f"{dtype}: largest gap"] = max(differences)
            bench.numbers[f"{dtype}: mean gap"] = sum(differences) / len(differences)
            allowed = atol(bench) if dtype == "float32" else LOOSE
            expect(
                max(differences) <= allowed,
                f"{dtype}: trainer and replica differ by up to {max(differences):.2e} in the log-prob of a sampled "
                f"token (tolerance {allowed:g})",
            )


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
        lengths = [len(generation.output_ids) for generation in generations[::-1]]
        rows, start = [], 0
        for length in lengths:
            rows.append(turned[start : start + length])
            start += length
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
            versions = batch.tokens["versions"][batch.tokens["loss_mask"]].unique().tolist()
            expect(
                versions == [pair.sync.version], f"the batch holds versions {versions}, expected {pair.sync.version}"
            )
            await pair.step(batch)
            await pair.sync.update(version)
            await pair.trainer.set_version(version)
            saved = await pair.saved(bench.folder / f"saved-{version}")
            await expect_serves(bench, pair, saved, version, f"after update {version}")


@check("pair.versions.in_flight", level=Level.LOOP, law=1, spec="infer", deadline_s=120.0)
async def in_flight(bench: PairBench) -> None:
    """A request that runs through updates is one output whose stamps only rise, and ends on the newest version."""
    async with bench.pair(replicas=1, lr=0.05) as pair:
        batch = pair.batch(await pair.generate(temperature=1.0))
        running = asyncio.ensure_future(pair.generate(((5, 9, 12), (7,)), temperature=1.0, max_new_tokens=160))
        for _ in range(2):
            await _generated(pair.replicas[0], 12)
            await pair.step(batch)
            await pair.update()
        ended = await running
        for one in ended:
            stamps = [span.version for span in one.version_spans]
            expect(stamps == sorted(stamps), f"versions go back within one output: {stamps}")
            covered = [place for span in one.version_spans for place in range(span.start, span.stop)]
            expect(covered == list(range(len(one.output_ids))), f"spans {one.version_spans} do not cover the output")
            expect(len(one.output_ids) == 160, f"expected 160 tokens through two updates, got {len(one.output_ids)}")
        spread = {span.version for one in ended for span in one.version_spans}
        bench.notes.append(f"versions within one output: {sorted(spread)}")
        expect(len(spread) > 1, "two updates happened while requests ran, and every token carries one version")
        saved = await pair.saved(bench.folder / "saved")
        fresh = await pair.generate(temperature=1.0)
        expect(
            gap(said(fresh), truth(saved, fresh)) <= atol(bench), "a new request after it is not served the new policy"
        )


async def _generated(worker: object, tokens: int) -> None:
    """Let the loop turn until a replica has generated more tokens."""
    goal = None
    while True:
        status = await worker.call("status", timeout_s=30.0)  # type: ignore[attr-defined]
        goal = status.tokens_generated + tokens if goal is None else goal
        if status.tokens_generated >= goal or not status.num_running:
            return
        await asyncio.sleep(0)
