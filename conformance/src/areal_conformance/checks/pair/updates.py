"""An update from end to end: what the trainer holds is what the replicas compute with, in one process or in many.

Knows: the trainer's saved folder as the truth of its weights, and a run of a few steps.
Does not know: how weights travel.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.pair import PROMPTS, Pair, PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import atol, changed, expect_serves, gap, held, said, tensors_of, truth
from areal_conformance.oracles.infer_judging import raises
from areal_conformance.outcome import expect
from areal_core.contract.errors import VersionRegressed
from areal_core.contract.inference import Generation
from areal_core.contract.train import LoraSpec
from areal_core.weights.tensors import fingerprint

rule = partial(check, level=Level.LOOP, law=7, spec="weights")


@rule("pair.update.witness", deadline_s=180.0)
async def witness(bench: PairBench) -> None:
    """After each update the replicas compute with the weights the trainer saves, tied or not, by any transport."""
    for number, transport in enumerate(bench.transports):
        for tied in (True, False):
            model = bench.model(tied=tied)
            async with bench.pair(model=model, transport=transport, lr=0.03) as pair:
                for _ in range(2):
                    generations = await pair.generate(temperature=1.0)
                    await pair.step(pair.batch(generations))
                    update = await pair.update()
                    version = update.version
                    saved = await pair.saved(bench.folder / f"{number}-{tied}-{version}")
                    when = f"{transport}, {'tied' if tied else 'untied'}, version {version}"
                    tensors = tensors_of(saved)
                    told = f"{update.num_tensors} tensors were sent, the trainer's folder holds {len(tensors)}"
                    expect(update.num_tensors in (len(tensors), len(tensors) - 1), f"{when}: {told}")
                    await expect_serves(bench, pair, saved, version, when)
                    for worker in pair.replicas:
                        own = {name: tensor for name, tensor in held(bench, worker).items() if name in tensors}
                        wrong = [name for name in own if fingerprint(own[name]) != fingerprint(tensors[name])]
                        expect(not wrong, f"{when}: the replica's own {wrong[:4]} are not the trainer's")


@rule("pair.update.changes_policy", deadline_s=120.0)
async def changes_policy(bench: PairBench) -> None:
    """One optimizer step changes the served policy, every layer of it, at the update and not before."""
    async with bench.pair(lr=0.02) as pair:
        before = await pair.generate(temperature=0.0)
        start = await pair.saved(bench.folder / "start")
        expect(gap(said(before), truth(start, before)) <= atol(bench), "the starting policies differ")
        await pair.step(pair.batch(before))
        unserved = await pair.generate(temperature=0.0)
        early = gap(said(unserved), truth(start, unserved))
        expect(early <= atol(bench), f"the served policy changed before the update, by {early:.1e}")
        update = await pair.update()
        stepped = await pair.saved(bench.folder / "stepped")
        old, new = tensors_of(start), tensors_of(stepped)
        same = [name for name in new if bool((old[name] == new[name]).all())]
        expect(not same, f"one optimizer step left {len(same)} tensors as they were: {same[:4]}")
        # The first update has nothing to compare with; a second one without a step must be all unchanged.
        again = await pair.update()
        told = f"without a step {again.num_tensors - again.unchanged} of {again.num_tensors} tensors changed"
        expect(again.unchanged == again.num_tensors == update.num_tensors, told)
        after = await pair.generate(temperature=0.0)
        moved = gap(said(after), truth(start, after))
        bench.numbers["moved"] = moved
        told = f"the served log-probs moved by {moved:.1e}: the step did not reach the replicas"
        expect(moved > 10 * atol(bench), told)
        await expect_serves(bench, pair, stepped, pair.sync.version, "after one step and two updates")


@rule("pair.update.one_by_one", deadline_s=180.0)
async def one_by_one(bench: PairBench) -> None:
    """Every tensor arrives in its own place: replicas of another model compute as the trainer after one update."""
    for tied in (True, False):
        ours, theirs = bench.model(tied=tied, seed=1), bench.model(tied=tied, seed=2)
        async with bench.pair(model=ours, replica_model=theirs, lr=0.0) as pair:
            await expect_serves(bench, pair, theirs, pair.sync.version, "before the update")
            await pair.update()
            when = f"after the update, {'tied' if tied else 'untied'}"
            await expect_serves(bench, pair, ours, pair.sync.version, when)


@check("pair.update.after_load", level=Level.LOOP, law=4, spec="train", requires=("train.checkpoint.exact",))
async def after_load(bench: PairBench) -> None:
    """After `load_state` an update brings the replicas back to the loaded policy."""
    async with bench.pair(lr=0.05) as pair:
        generations = await pair.generate(temperature=1.0)
        batch = pair.batch(generations)
        await pair.step(batch)
        saved = await pair.saved(bench.folder / "saved")
        await pair.trainer.save_state(bench.folder / "state")
        await pair.update()
        await pair.step(batch)
        await pair.update()
        later = await pair.generate(temperature=1.0)
        moved = gap(said(later), truth(saved, later))
        expect(moved > 10 * atol(bench), f"the second step moved the policy by {moved:.1e} only")
        await pair.trainer.load_state(bench.folder / "state")
        await pair.update()
        await expect_serves(bench, pair, saved, pair.sync.version, "after load_state and an update")


@rule("pair.update.regressed")
async def regressed(bench: PairBench) -> None:
    """A version served already, or an older one, is refused by replica and weight sync; what is served stays."""
    async with bench.pair(lr=0.05) as pair:
        batch = pair.batch(await pair.generate(temperature=1.0))
        await pair.step(batch)
        newest = pair.sync.version + 5
        await pair.sync.update(newest)
        saved = await pair.saved(bench.folder / "five")
        await pair.step(batch)
        for version in (newest, newest - 1):
            update = partial(pair.sync.update, version)
            await raises(VersionRegressed, update, f"version {version} sent to a fleet that serves {newest}")
            offer = pair.transport.open(version)
            await pair.workers["actor/0"].call("send_weights", offer, version, timeout_s=60.0)
            take = partial(pair.replicas[0].call, "receive_weights", offer, version, timeout_s=60.0)
            await raises(VersionRegressed, take, f"version {version} offered to a replica that serves {newest}")
            pair.transport.release(offer)
            await expect_serves(bench, pair, saved, newest, f"after version {version} was offered")


@rule("pair.drift.none", deadline_s=180.0)
async def drift(bench: PairBench) -> None:
    """With learning rate 0, fifty steps and updates change no bit of what is sent, saved or served."""
    async with bench.pair(lr=0.0) as pair:
        await pair.update()
        first = await _one_by_one(pair)
        batch = pair.batch(first)
        start = (await pair.logprobs(batch)).tolist()
        saved = tensors_of(await pair.saved(bench.folder / "first"))
        for number in range(50):
            if number % 10 == 0:
                await pair.step(batch)
            update = await pair.update()
            moved = f"{update.num_tensors - update.unchanged} of {update.num_tensors} tensors changed"
            told = f"update {number + 2}: {moved} though the learning rate is 0"
            expect(update.unchanged == update.num_tensors, told)
        last = await _one_by_one(pair)
        pairs = [(g.output_ids, g.logprobs) for g in first], [(g.output_ids, g.logprobs) for g in last]
        expect(pairs[0] == pairs[1], "greedy output or log-probs changed over fifty updates of the same weights")
        ended = (await pair.logprobs(batch)).tolist()
        bench.numbers["drift"] = gap(start, ended)
        expect(ended == start, f"the trainer's own log-probs moved by {gap(start, ended):.1e}")
        after = tensors_of(await pair.saved(bench.folder / "last"))
        wrong = changed(saved, after)
        expect(not wrong, f"the trainer's weights changed: {wrong[:4]}")


async def _one_by_one(pair: Pair) -> list[Generation]:
    """Generate greedily for one prompt after another: beside others the last bits depend on who arrives with whom."""
    return [generation for prompt in PROMPTS for generation in await pair.generate([prompt], temperature=0.0)]


@rule("pair.update.cast", requires=("train.precision.bfloat16", "infer.weights.cast"))
async def cast(bench: PairBench) -> None:
    """A trainer in bfloat16 and replicas in another dtype serve the weights the trainer saves."""
    async with bench.pair(train_dtype="bfloat16", lr=0.05) as pair:
        for version in (1, 2):
            await pair.step(pair.batch(await pair.generate(temperature=1.0)))
            await pair.update()
            saved = await pair.saved(bench.folder / f"saved-{version}")
            generations = await pair.generate(temperature=1.0, max_new_tokens=12)
            difference = gap(said(generations), truth(saved, generations))
            bench.numbers[f"gap_{version}"] = difference
            told = f"log-probs are {difference:.2e} from those of the saved weights"
            expect(difference <= 0.15, f"version {version}: {told}")


@rule(
    "pair.update.adapter",
    requires=("train.weights.adapter", "infer.weights.adapter"),
    since=(1, 3),
    deadline_s=180.0,
)
async def adapter(bench: PairBench) -> None:
    """An adapter that travels alone is served as the merged model the trainer saves, update after update."""
    lora = LoraSpec(rank=3, alpha=12.0, targets=("q_proj", "v_proj", "down_proj"))
    for transport in bench.transports:
        async with bench.pair(transport=transport, lora=lora, lr=0.05) as pair:
            whole = sum(tensor.numel() for tensor in tensors_of(pair.model).values())
            before = pair.sync.version
            for number in range(2):
                generations = await pair.generate(temperature=1.0)
                batch = pair.batch(generations)
                difference = gap(said(generations), (await pair.logprobs(batch)).tolist())
                told = f"version {pair.sync.version} over {transport}: the trainer rates samples {difference:.1e} apart"
                expect(difference <= atol(bench), told)
                await pair.step(batch)
                update = await pair.update()
                saved = await pair.saved(bench.folder / f"{transport}-{number}")
                await expect_serves(bench, pair, saved, before + number + 1, f"update {number + 1} over {transport}")
                expect(update.num_bytes < whole, f"{update.num_bytes} bytes travelled of a model of {whole} numbers")


runs = partial(check, level=Level.LOOP, law=3, spec="train")


@runs("pair.run.synchronous", requires=("infer.sampling.seed", "infer.deterministic"), deadline_s=120.0)
async def synchronous(bench: PairBench) -> None:
    """Three steps of generate, train and update give the same tokens and the same weights, bit for bit, each time."""
    runs = []
    for number, transport in enumerate((bench.transports * 2)[:2]):
        tokens = []
        async with bench.pair(transport=transport, lr=0.05, infer_claims=("deterministic",)) as pair:
            for version in range(3):
                generations = []
                for place, prompt in enumerate(PROMPTS):
                    seed = 100 * version + place
                    generations += await pair.generate((prompt,), temperature=1.0, seed=seed, max_new_tokens=10)
                tokens.append([(one.output_ids, one.logprobs) for one in generations])
                await pair.step(pair.batch(generations))
                await pair.update()
            runs.append((tokens, tensors_of(await pair.saved(bench.folder / f"run-{number}"))))
    (tokens, weights), (again, other) = runs
    for version, (left, right) in enumerate(zip(tokens, again, strict=True)):
        expect(left == right, f"two runs of the same seeds differ in what was sampled at version {version}")
    expect(len({str(step) for step in tokens}) == 3, "three versions sampled the same: nothing was learned from")
    wrong = changed(weights, other)
    expect(not wrong, f"two runs of the same seeds end with other weights: {wrong[:4]}")


@runs("pair.run.processes", law=7, spec="scheduler", deadline_s=300.0)
async def processes(bench: PairBench) -> None:
    """Trainer and replicas in processes of their own go from step to served policy as they do in one."""
    async with bench.pair(processes=True, replicas=2, lr=0.05) as pair:
        for _ in range(2):
            await pair.step(pair.batch(await pair.generate(temperature=1.0)))
            version = (await pair.update()).version
            saved = await pair.saved(bench.folder / f"saved-{version}")
            await expect_serves(bench, pair, saved, version, f"in processes, version {version}")
