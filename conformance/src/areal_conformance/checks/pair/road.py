"""The whole road: a synchronous run, and the same in processes of their own.

Knows: a run of a few steps.
Does not know: the asynchronous loop.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.pair import PROMPTS, PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import expect_serves, tensors_of
from areal_conformance.outcome import expect

rule = partial(check, level=Level.LOOP, law=3, spec="train")


@rule("pair.run.synchronous", requires=("infer.sampling.seed", "infer.deterministic"), deadline_s=120.0)
async def synchronous(bench: PairBench) -> None:
    """Three steps of generate, train and update give the same tokens and the same weights, bit for bit, each time."""
    runs = []
    for number, transport in enumerate((bench.transports * 2)[:2]):
        tokens = []
        async with bench.pair(transport=transport, lr=0.05, infer_claims=("deterministic",)) as pair:
            for version in range(3):
                generations = []
                for place, prompt in enumerate(PROMPTS):
                    generations += await pair.generate(
                        (prompt,), temperature=1.0, seed=100 * version + place, max_new_tokens=10
                    )
                tokens.append([(one.output_ids, one.logprobs) for one in generations])
                await pair.step(pair.batch(generations))
                await pair.update()
            runs.append((tokens, tensors_of(await pair.saved(bench.folder / f"run-{number}"))))
    (tokens, weights), (again, other) = runs
    for version, (left, right) in enumerate(zip(tokens, again, strict=True)):
        expect(left == right, f"two runs of the same seeds differ in what was sampled at version {version}")
    expect(len({str(step) for step in tokens}) == 3, "three versions sampled the same: nothing was learned from")
    wrong = [name for name, tensor in weights.items() if not bool((tensor == other[name]).all())]
    expect(not wrong, f"two runs of the same seeds end with other weights: {wrong[:4]}")


@rule("pair.run.processes", law=7, spec="scheduler", deadline_s=300.0)
async def processes(bench: PairBench) -> None:
    """Trainer and replicas in processes of their own go from step to served policy as they do in one."""
    async with bench.pair(processes=True, replicas=2, lr=0.05) as pair:
        for _ in range(2):
            await pair.step(pair.batch(await pair.generate(temperature=1.0)))
            version = (await pair.update()).version
            saved = await pair.saved(bench.folder / f"saved-{version}")
            await expect_serves(bench, pair, saved, version, f"in processes, version {version}")
