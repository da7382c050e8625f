"""What is held between the two phases is one whole version or nothing, whatever went wrong before.

Knows: aborts during a transfer, transfers that break off over a version that was held, leftovers of dropped ones.
Does not know: a single good update (`updates`, `content`).
"""

from __future__ import annotations

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.content import computes, nudged
from areal_conformance.checks.infer.sources import FailingSource, GatedSource
from areal_conformance.oracles.infer_judging import raises
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError
from areal_core.contract.inference import InferenceEngine
from areal_core.weights.fingerprint import fingerprint
from areal_torch.testing.serving import FolderWeights


def all_changed(weights: FolderWeights, seed: int) -> FolderWeights:
    """Return weights with every single tensor changed."""
    for number, name in enumerate(weights.tensors):
        weights = nudged(weights, name, seed=1000 * seed + number)
    return weights


async def holds(bench: InferBench, engine: InferenceEngine, weights: FolderWeights, told: str) -> None:
    """Expect an engine to serve exactly these weights: tensor by tensor where they can be seen, and as computed."""
    witness = bench.target.adapter.witness(engine)
    if witness is not None:
        seen = witness.tensors()
        wrong = [
            name
            for name, tensor in weights.tensors.items()
            if fingerprint(seen[name].float()) != fingerprint(tensor.float())
        ]
        expect(not wrong, f"{told}: {len(wrong)} of {len(seen)} tensors served are of another version: {wrong[:4]}")
    await computes(bench, engine, bench.model(), weights, told)


@check("infer.stages.abort_meanwhile", level=Level.FAULTS, law=7, spec="infer#weights", requires=("weights.staged",))
async def abort_meanwhile(bench: InferBench) -> None:
    """`abort_weights` during a transfer drops it: however the transfer ends, that version cannot be committed."""
    base, count = bench.weights(), len(bench.weights().tensors)
    async with bench.engine() as engine:
        for number, at in enumerate((0, count // 2, count - 1)):
            old = await bench.serving(engine)
            source = GatedSource(all_changed(bench.weights(), number), old + 1, at=at)
            receiving = bench.call(engine.receive_weights(source, old + 1))
            try:
                await bench.until(source.inside.is_set, "the transfer to begin")
                aborting = bench.call(engine.abort_weights())
                await bench.turns(20)
            finally:
                source.open()
            outcomes = await bench.ended([receiving, aborting], "an aborted transfer to end")
            expect(outcomes[1] is None, f"abort_weights must return, raised {outcomes[1]!r}")
            told = f"a transfer aborted before tensor {at} of {count}"
            await raises(ArealError, lambda version=old + 1: engine.commit_weights(version), f"{told}: its commit")  # type: ignore[misc]
            expect(
                await bench.serving(engine) == old,
                f"{told}: version {old} must still serve, status says {await bench.serving(engine)}",
            )
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
            try:
                await engine.receive_weights(source, later)
            except Exception as error:
                bench.numbers[f"broke off at {at}"] = float(isinstance(error, OSError))
            else:
                raise Violation(f"{told}: the source raised, yet receive_weights returned")
            if later != old + 1:
                await raises(ArealError, lambda version=later: engine.commit_weights(version), f"{told}: its commit")  # type: ignore[misc]
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
