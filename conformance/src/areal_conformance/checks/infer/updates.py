"""The two phases: what is received is held and proved but not served; what is committed is served whole.

Knows: order of calls, receipts, sources that reuse their memory, transfers that break off or are aborted.
Does not know: which updates are unfit (`coverage`), or values after the commit (`content`).
"""

from __future__ import annotations

import math
from functools import partial

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.content import computes, nudged, other_values
from areal_conformance.checks.infer.sources import FailingSource, ScratchSource, stalled
from areal_conformance.checks.infer.versions import harvest, told_engine
from areal_conformance.oracles.infer_judging import (
    expect_answered,
    prompts,
    raises,
    same,
    teller,
    telling,
    true_to_versions,
    versions_of,
)
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, VersionRegressed, WeightSyncError
from areal_core.contract.inference import InferenceEngine
from areal_core.weights.tensors import fingerprint
from areal_torch.testing.serving import FolderWeights


async def serves(bench: InferBench, engine: InferenceEngine, version: int, told: str) -> None:
    """Expect an engine of telling weights to serve `version` to a new request, and its status to say so."""
    request = bench.ask(5, 9, 7, max_new_tokens=4)
    result = await bench.generate(engine, request)
    stated = await bench.serving(engine)
    right = stated == version and {*versions_of(result)} == {version} and {*result.output_ids} == {telling(version)}
    got = f"status says {stated}, spans {result.version_spans}, tokens {result.output_ids}"
    expect(right, f"{told}: version {version} must serve, whose weights emit {telling(version)}; {got}")


@check("infer.weights.two_phase", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.staged",))
async def two_phase(bench: InferBench) -> None:
    """Received weights are not served before their commit: not to new requests, not to running ones."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        request = bench.ask(5, max_new_tokens=LONG)
        running = bench.call(engine.generate(request))
        await bench.until_generated(engine, 5)
        await engine.receive_weights(teller(bench, old + 1).offer(old + 1), old + 1)
        await bench.until_generated(engine, 10)
        await serves(bench, engine, old, "received, not committed")
        if bench.target.claimed("pause.abort"):
            result = (await harvest(bench, engine, [running]))[0]
            true_to_versions(result, request)
            expect(set(versions_of(result)) == {old}, f"nothing was committed, a running request shows {result}")
        else:
            running.cancel()
        await engine.commit_weights(old + 1)
        await serves(bench, engine, old + 1, "committed")


@check("infer.weights.aborted", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.staged",))
async def aborted(bench: InferBench) -> None:
    """`abort_weights` drops what was received, for good and idempotently; the next update, of any number, works."""
    async with bench.engine() as engine:
        await engine.abort_weights()
        old = await told_engine(bench, engine)
        await engine.receive_weights(teller(bench, old + 1).offer(old + 1), old + 1)
        await engine.abort_weights()
        await engine.abort_weights()
        await serves(bench, engine, old, "aborted")
        await raises(WeightSyncError, lambda: engine.commit_weights(old + 1), "commit of an aborted version")
        await serves(bench, engine, old, "commit of an aborted version refused")
        await told_engine(bench, engine)
        await serves(bench, engine, old + 1, "the same number again, received anew")
        other, again = teller(bench, 40), teller(bench, old + 4)
        await engine.receive_weights(other.offer(old + 3), old + 3)
        await engine.abort_weights()
        await engine.receive_weights(again.offer(old + 4), old + 4)
        await engine.commit_weights(old + 4)
        await serves(bench, engine, old + 4, "received, aborted, another received")


@check("infer.weights.abort_unstarted", level=Level.SINGLE, law=7, spec="infer#weights")
async def abort_unstarted(bench: InferBench) -> None:
    """`abort_weights` with nothing received changes nothing, before and after updates."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 30)
        before = await bench.generate(engine, request)
        await engine.abort_weights()
        await expect_answered(bench, engine, request, told="after an abort of nothing")
        version = await told_engine(bench, engine)
        await engine.abort_weights()
        await serves(bench, engine, version, "an abort after a commit")
        await bench.update(engine, bench.weights())
        after = await bench.generate(engine, request)
    expect(same(bench, before, after), f"the folder's weights came back, the output is {after}, it was {before}")


@check("infer.weights.commit_unreceived", level=Level.SINGLE, law=7, spec="infer#weights")
async def commit_unreceived(bench: InferBench) -> None:
    """A version that was never received, or another than the one received, is not committed."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        for wrong in (old + 1, old + 7):
            told = f"commit of version {wrong}, never received"
            await raises(WeightSyncError, partial(engine.commit_weights, wrong), told)
            await serves(bench, engine, old, told)
        if not bench.target.claimed("weights.staged"):
            return
        await engine.receive_weights(teller(bench, old + 3).offer(old + 3), old + 3)
        for wrong in (old + 2, old + 4):
            told = f"commit of version {wrong} when {old + 3} was received"
            await raises(WeightSyncError, partial(engine.commit_weights, wrong), told)
            await serves(bench, engine, old, told)
        await engine.abort_weights()


@check("infer.weights.regressed", level=Level.SINGLE, law=7, spec="infer#weights")
async def regressed(bench: InferBench) -> None:
    """Weights not newer than those serving are refused with VersionRegressed; what serves is untouched."""
    async with bench.engine() as engine:
        await told_engine(bench, engine)
        old = await told_engine(bench, engine)
        for wrong in (old, old - 1, 0):
            source = teller(bench, 50).offer(wrong)
            told = f"version {wrong} offered while {old} serves"
            await raises(VersionRegressed, partial(engine.receive_weights, source, wrong), told)
            await serves(bench, engine, old, told)
        await told_engine(bench, engine)
        await serves(bench, engine, old + 1, "a newer version after refused ones")


@check("infer.weights.other_manifest", level=Level.SINGLE, law=7, spec="infer#weights")
async def other_manifest(bench: InferBench) -> None:
    """A source that holds another version than the one asked for is refused."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        for held in (old + 1, old + 3):
            source = teller(bench, held).offer(held)
            told = f"version {old + 2} asked for, the source holds {held}"
            await raises(WeightSyncError, partial(engine.receive_weights, source, old + 2), told)
            await serves(bench, engine, old, told)
        await told_engine(bench, engine)
        await serves(bench, engine, old + 1, "a good update after a refused one")


@check("infer.weights.received_twice", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.staged",))
async def received_twice(bench: InferBench) -> None:
    """Receiving again replaces what was held: the commit serves the last received, and no other number."""
    async with bench.engine() as engine:
        old = await told_engine(bench, engine)
        await engine.receive_weights(teller(bench, 40).offer(old + 1), old + 1)
        await engine.receive_weights(teller(bench, old + 1).offer(old + 1), old + 1)
        await engine.commit_weights(old + 1)
        await serves(bench, engine, old + 1, "the same version received twice")
        await engine.receive_weights(teller(bench, 41).offer(old + 2), old + 2)
        await engine.receive_weights(teller(bench, old + 3).offer(old + 3), old + 3)
        await raises(WeightSyncError, lambda: engine.commit_weights(old + 2), "commit of a version replaced since")
        await engine.receive_weights(teller(bench, old + 3).offer(old + 3), old + 3)
        await engine.commit_weights(old + 3)
        await serves(bench, engine, old + 3, "another version received since")


@check("infer.weights.torn", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.staged",))
async def torn(bench: InferBench) -> None:
    """Generation goes on while weights arrive, and is wholly of the old ones until the commit."""
    count = len(bench.weights().tensors)
    request = bench.ask(5, 9, 12, temperature=0.0, max_new_tokens=8)
    async with bench.engine() as engine:
        whole = await bench.generate(engine, request)
        for at in (1, count // 2, count - 1):
            async with stalled(bench, engine, bench.weights(bench.model(seed=5)), at=at) as (source, receiving):
                during = await bench.generate(engine, request)
            await bench.ended([receiving], "receive_weights to return")
            expect(not source.timed_out, "weights.staged is claimed, yet no request was served while weights arrived")
            told = f"after {at} of {count} tensors of the next version"
            expect(same(bench, whole, during), f"{told}: output {during}, it must still be {whole}")
            await engine.abort_weights()
            after = await bench.generate(engine, request)
            expect(same(bench, whole, after), f"received and aborted: output {after}, it must still be {whole}")


@check("infer.weights.receipt", level=Level.SINGLE, law=7, spec="infer#weights")
async def receipt(bench: InferBench) -> None:
    """The receipt names version, bytes and the fingerprint of every tensor as it was handed over, each time anew."""
    for tied in (False, True):
        async with bench.engine(model=bench.model(tied=tied)) as engine:
            for seed in (5, 6, 5):
                weights = bench.weights(bench.model(tied=tied, seed=seed))
                version = await bench.serving(engine) + 1
                got = await bench.take(engine, weights.offer(version), version)
                truth = {name: fingerprint(tensor) for name, tensor in weights.tensors.items()}
                expect(got.version == version, f"version {version} was received, the receipt says {got.version}")
                size = sum(tensor.nbytes for tensor in weights.tensors.values())
                expect(got.num_bytes == size, f"{size} bytes were received, the receipt says {got.num_bytes}")
                expect(got.seconds >= 0 and math.isfinite(got.seconds), f"seconds must be sane, got {got.seconds}")
                names = set(truth) ^ set(got.fingerprints)
                expect(not names, f"fingerprints must be of the tensors sent, no more, no less; differing: {names}")
                wrong = [name for name in truth if got.fingerprints[name] != truth[name]]
                expect(not wrong, f"{len(wrong)} of {len(truth)} fingerprints are not of what was sent: {wrong[:4]}")


@check("infer.weights.copied", level=Level.SINGLE, law=7, spec="infer#weights")
async def copied(bench: InferBench) -> None:
    """Tensors are copied while they are lent, and never written to: a source may reuse its buffer."""
    weights = bench.weights(bench.model(seed=5))
    truth = {name: fingerprint(tensor) for name, tensor in weights.tensors.items()}
    async with bench.engine() as engine:
        for per_bucket in (3, 1, 100):
            version = await bench.serving(engine) + 1
            await bench.take(engine, ScratchSource(weights, version, per_bucket=per_bucket), version)
            for request in bench.asks(prompts(3), temperature=1.0):
                told = f"weights that came through a reused buffer, {per_bucket} tensors at a time"
                await expect_answered(bench, engine, request, weights=weights, told=told)
        await bench.update(engine, weights)
        await bench.update(engine, bench.weights())
    changed = [name for name, tensor in weights.tensors.items() if fingerprint(tensor) != truth[name]]
    expect(not changed, f"the engine wrote into tensors that were lent to it: {changed[:4]}")


def all_changed(weights: FolderWeights, seed: int) -> FolderWeights:
    """Return weights with every single tensor changed."""
    for number, name in enumerate(weights.tensors):
        weights = nudged(weights, name, seed=1000 * seed + number)
    return weights


async def holds(bench: InferBench, engine: InferenceEngine, weights: FolderWeights, told: str) -> None:
    """Expect an engine to serve exactly these weights: tensor by tensor where they can be seen, and as computed."""
    witness = bench.target.adapter.witness(engine)
    if witness is not None:
        wrong = other_values(weights, witness.tensors())
        expect(not wrong, f"{told}: {len(wrong)} of the tensors served are of another version: {wrong[:4]}")
    await computes(bench, engine, bench.model(), weights, told)


@check("infer.stages.abort_meanwhile", level=Level.FAULTS, law=7, spec="infer#weights", requires=("weights.staged",))
async def abort_meanwhile(bench: InferBench) -> None:
    """`abort_weights` during a transfer drops it: however the transfer ends, that version cannot be committed."""
    base, count = bench.weights(), len(bench.weights().tensors)
    async with bench.engine() as engine:
        for number, at in enumerate((0, count // 2, count - 1)):
            old = await bench.serving(engine)
            async with stalled(bench, engine, all_changed(bench.weights(), number), at=at) as (_, receiving):
                aborting = bench.call(engine.abort_weights())
                await bench.turns(20)
            outcomes = await bench.ended([receiving, aborting], "an aborted transfer to end")
            expect(outcomes[1] is None, f"abort_weights must return, raised {outcomes[1]!r}")
            told = f"a transfer aborted before tensor {at} of {count}"
            await raises(ArealError, partial(engine.commit_weights, old + 1), f"{told}: its commit")
            stated = await bench.serving(engine)
            expect(stated == old, f"{told}: version {old} must still serve, status says {stated}")
            await holds(bench, engine, base, told)
            base = all_changed(bench.weights(), 10 + number)
            await bench.update(engine, base)
            await holds(bench, engine, base, f"the update after {told}")


@check("infer.stages.broken_over_held", level=Level.FAULTS, law=7, spec="infer#weights", requires=("weights.staged",))
async def broken_over_held(bench: InferBench) -> None:
    """A transfer that breaks off leaves the version held before whole or not at all: its commit is refused or exact."""
    base, count = bench.weights(), len(bench.weights().tensors)
    async with bench.engine() as engine:
        for number, at in enumerate((0, 1, count // 2, count - 1)):
            old = await bench.serving(engine)
            held, torn = all_changed(bench.weights(), 20 + number), all_changed(bench.weights(), 30 + number)
            await engine.receive_weights(held.offer(old + 1), old + 1)
            later = old + 1 + number % 2
            source = FailingSource(torn, later, at=at, error=OSError("the sender went away"))
            told = f"version {old + 1} received, then {later} broken off before tensor {at} of {count}"
            error = await raises(Exception, partial(engine.receive_weights, source, later), f"{told}: receive_weights")
            bench.numbers[f"broke off at {at}"] = float(isinstance(error, OSError))
            if later != old + 1:
                await raises(ArealError, partial(engine.commit_weights, later), f"{told}: its commit")
            try:
                await engine.commit_weights(old + 1)
            except ArealError:
                await engine.abort_weights()
            else:
                base = held
            wanted = old + 1 if base is held else old
            stated = await bench.serving(engine)
            expect(stated == wanted, f"{told}: version {wanted} must serve now, status says {stated}")
            await holds(bench, engine, base, f"{told}, then version {old + 1} committed: version {wanted} serves")


@check("infer.stages.no_leftovers", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.staged",))
async def no_leftovers(bench: InferBench) -> None:
    """Of a version dropped before its commit, aborted or replaced, not one tensor comes back with the next."""
    async with bench.engine() as engine:
        for number, abort in enumerate((True, False, True)):
            old = await bench.serving(engine)
            dropped, wanted = all_changed(bench.weights(), 40 + number), all_changed(bench.weights(), 50 + number)
            await engine.receive_weights(dropped.offer(old + 1), old + 1)
            if abort:
                await engine.abort_weights()
            await engine.receive_weights(wanted.offer(old + 2), old + 2)
            await engine.commit_weights(old + 2)
            how = "aborted" if abort else "replaced"
            await holds(bench, engine, wanted, f"version {old + 1} received and {how}, then {old + 2} served")
            following = all_changed(bench.weights(), 60 + number)
            await bench.update(engine, following)
            await holds(bench, engine, following, f"the update after one that was {how}")
