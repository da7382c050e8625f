"""An update that fails or is given up says who failed and leaves nothing: the next one brings all of the trainer's.

Knows: faults of the transport and of workers, on either side, half way and after the last byte.
Does not know: engines, or where they keep what they have not committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.pair import TIMEOUT_S, Pair, PairBench
from areal_conformance.benches.pair_faults import Trouble
from areal_conformance.benches.pair_workers import InProcessWorker
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import atol, expect_holds, expect_serves, gap, said, tensors_of, truth
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.errors import ArealError, FingerprintMismatch, StorageError, WeightSyncError, WorkerDied
from areal_core.contract.weights import WeightManifest


async def fails(pair: Pair, what: str, *, naming: str = "") -> ArealError:
    """Expect the update to fail with an ArealError, and return it."""
    try:
        await pair.sync.update(pair.sync.version + 1)
    except ArealError as error:
        expect(naming in str(error), f"{what}: the error must name {naming}, it says {error}")
        return error
    raise Violation(f"{what}: the update reported success")


async def recovers(bench: PairBench, pair: Pair, old: Path, what: str) -> None:
    """Expect the old policy on every replica, and a next update that brings the new one."""
    version = pair.sync.version
    await expect_serves(bench, pair, old, version, f"after {what}")
    await pair.update()
    new = await pair.saved(bench.folder / f"after {what}"[:60].replace(" ", "-"))
    await expect_serves(bench, pair, new, version + 1, f"the update after {what}")


@check("pair.fault.spoiled", level=Level.FAULTS, law=7, spec="weights", deadline_s=120.0)
async def spoiled(bench: PairBench) -> None:
    """One bit that flips on the way to one of two replicas is found by its fingerprint; nobody takes the version."""
    for transport in bench.transports:
        trouble = Trouble()
        async with bench.pair(replicas=2, transport=transport, wrap=trouble.wrap) as pair:
            old = await pair.saved(bench.folder / f"old-{transport}")
            await pair.step(pair.batch(await pair.generate(temperature=1.0)))
            trouble.on_read, trouble.only_reader = _flip_one, trouble.readers[0] + 1
            error = await fails(pair, "a flipped bit", naming="rollout/")
            if not trouble.fired:
                _never()
            expect(
                isinstance(error, FingerprintMismatch),
                f"expected FingerprintMismatch, got {type(error).__name__}: {error}",
            )
            trouble.heal()
            await recovers(bench, pair, old, f"a flipped bit, {transport}")


@check("pair.fault.sender_spoiled", level=Level.FAULTS, law=7, spec="train#send_weights", deadline_s=120.0)
async def sender_spoiled(bench: PairBench) -> None:
    """Bytes that the sink holds otherwise than the engine does are the trainer's to find: FingerprintMismatch."""
    trouble = Trouble()
    async with bench.pair(wrap=trouble.wrap) as pair:
        old = await pair.saved(bench.folder / "old")
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        trouble.on_write = _flip_one
        error = await fails(pair, "bytes spoiled on their way into the sink")
        expect(
            isinstance(error, FingerprintMismatch), f"expected FingerprintMismatch, got {type(error).__name__}: {error}"
        )
        trouble.heal()
        await recovers(bench, pair, old, "spoiled bytes")


@check("pair.fault.renamed", level=Level.FAULTS, law=7, spec="infer#receive_weights", deadline_s=120.0)
async def renamed(bench: PairBench) -> None:
    """A manifest with a name too many, too few or another is refused by the replicas, and nothing changes."""

    def without_last(manifest: WeightManifest) -> WeightManifest:
        return attrs.evolve(manifest, tensors=manifest.tensors[:-1])

    def other_name(manifest: WeightManifest) -> WeightManifest:
        first = attrs.evolve(manifest.tensors[0], name="model.other.weight")
        return attrs.evolve(manifest, tensors=(first, *manifest.tensors[1:]))

    def one_more(manifest: WeightManifest) -> WeightManifest:
        more = attrs.evolve(manifest.tensors[0], name="model.more.weight")
        return attrs.evolve(manifest, tensors=(*manifest.tensors, more))

    def other_version(manifest: WeightManifest) -> WeightManifest:
        return attrs.evolve(manifest, version=manifest.version + 1)

    trouble = Trouble()
    async with bench.pair(wrap=trouble.wrap) as pair:
        old = await pair.saved(bench.folder / "old")
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        for change in (without_last, other_name, one_more, other_version):
            trouble.on_manifest = change
            error = await fails(pair, change.__name__, naming="rollout/0")
            expect(isinstance(error, WeightSyncError), f"expected WeightSyncError, got {type(error).__name__}: {error}")
            await expect_serves(bench, pair, old, pair.sync.version, change.__name__)
        trouble.heal()
        await recovers(bench, pair, old, "manifests that did not fit")


@check("pair.fault.replica", level=Level.FAULTS, law=7, spec="weights", deadline_s=120.0)
async def replica(bench: PairBench) -> None:
    """A replica that cannot receive, first or last of two, keeps both on the old version and is named."""

    def broken(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        raise OSError("the network cable was pulled")

    trouble = Trouble()
    async with bench.pair(replicas=2, wrap=trouble.wrap) as pair:
        old = await pair.saved(bench.folder / "old")
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        for which in (0, 1):
            trouble.on_read, trouble.only_reader, trouble.fired = broken, trouble.readers[0] + which, 0
            error = await fails(pair, "a replica that cannot receive", naming="rollout/")
            if not trouble.fired:
                _never()
            expect("network cable" in str(error), f"the error must say what happened, it says {error}")
            await expect_serves(bench, pair, old, pair.sync.version, f"after replica {which} failed to receive")
        trouble.heal()
        await recovers(bench, pair, old, "a replica that failed")


@check("pair.fault.replica_died", level=Level.FAULTS, law=9, spec="weights", deadline_s=120.0)
async def replica_died(bench: PairBench) -> None:
    """A replica that dies while it receives is left out; the other one takes the version and serves it."""
    async with bench.pair(replicas=2) as pair:
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        dead = pair.replicas[0]
        assert isinstance(dead, InProcessWorker)
        dead.faults["receive_weights"] = WorkerDied("rollout/0 ended", why="killed")
        update = await pair.update()
        expect(update.excluded == ("rollout/0",), f"expected rollout/0 to be left out, got {update.excluded}")
        new = await pair.saved(bench.folder / "new")
        pair.workers = {"rollout/1": pair.workers["rollout/1"]}
        generations = await pair.generate(temperature=1.0)
        stamps = {span.version for one in generations for span in one.version_spans}
        newest = pair.sync.version
        expect(stamps == {newest}, f"the replica left must serve version {newest}, it stamps {sorted(stamps)}")
        difference = gap(said(generations), truth(new, generations))
        expect(difference <= atol(bench), f"the replica left is {difference:.2e} away from the new policy")


@check("pair.fault.sender", level=Level.FAULTS, law=7, spec="train#send_weights", deadline_s=120.0)
async def sender(bench: PairBench) -> None:
    """A trainer that fails while it sends fails the update with its own error; the next one works."""
    count = [0]

    def full(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        count[0] += 1
        if count[0] > 2:
            raise StorageError("no room for weights", why="the disk is full", fix="free space")
        return bucket

    trouble = Trouble()
    async with bench.pair(wrap=trouble.wrap) as pair:
        old = await pair.saved(bench.folder / "old")
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        trouble.on_write = full
        error = await fails(pair, "a full disk", naming="no room for weights")
        expect(
            isinstance(error, StorageError), f"expected the sink's StorageError, got {type(error).__name__}: {error}"
        )
        expect(count[0] == 3, f"after the sink's error the engine wrote {count[0] - 3} buckets more")
        trouble.heal()
        await recovers(bench, pair, old, "a full disk")


def _flip_one(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Flip the lowest bit of the last element of the last tensor of a bucket."""
    changed = {name: tensor.detach().clone() for name, tensor in bucket.items()}
    last = changed[list(changed)[-1]]
    last.reshape(-1).view(torch.uint8)[-last.element_size()] ^= 1
    return changed


def _never() -> None:
    raise Inconclusive("the fault never fired: no replica read the transport")


GiveUp = Callable[[Pair, Trouble], Awaitable[None]]


@check("pair.fault.leftovers", level=Level.FAULTS, law=7, spec="weights", deadline_s=180.0)
async def leftovers(bench: PairBench) -> None:
    """Wherever an update is given up, the next one leaves no tensor of it: all are those the trainer holds then."""
    ways: tuple[tuple[str, GiveUp], ...] = (
        ("one given up after every byte was received", _after_the_last_byte),
        ("one given up half way", _half_way),
        ("one given up because another replica failed", _by_another),
        ("one given up after a bit flipped", _spoiled),
    )
    for tied in (True, False):
        trouble = Trouble()
        async with bench.pair(model=bench.model(tied=tied), replicas=2, lr=0.02, wrap=trouble.wrap) as pair:
            batch = pair.batch(await pair.generate(temperature=1.0))
            old = await pair.saved(bench.folder / f"old-{tied}")
            for number, (what, give_up) in enumerate(ways):
                version = pair.sync.version
                # The weights given up are neither those served nor those of the next update.
                await pair.step(batch)
                await give_up(pair, trouble)
                trouble.heal()
                await expect_serves(bench, pair, old, version, f"after an update, {what}")
                await pair.step(batch)
                await pair.update()
                new = await pair.saved(bench.folder / f"new-{tied}-{number}")
                when = f"the update after {what}, {'tied' if tied else 'untied'}"
                expect_holds(bench, pair, tensors_of(new), when)
                await expect_serves(bench, pair, new, version + 1, when)
                old = new


@check("pair.update.own_memory", level=Level.LOOP, law=7, spec="weights")
async def own_memory(bench: PairBench) -> None:
    """What is served is the replica's own: the next version may be written where the last one lay, unseen."""
    for transport in bench.transports:
        async with bench.pair(transport=transport, lr=0.02) as pair:
            batch = pair.batch(await pair.generate(temperature=1.0))
            for _ in range(2):
                await pair.step(batch)
                version = (await pair.update()).version
                saved = await pair.saved(bench.folder / f"{transport}-{version}")
                await pair.step(batch)
                following = pair.transport.open(version + 1)
                await pair.workers["actor/0"].call("send_weights", following, version + 1, timeout_s=TIMEOUT_S)
                when = f"{transport}, version {version + 1} was sent and nobody has received it"
                await expect_serves(bench, pair, saved, version, when)
                expect_holds(bench, pair, tensors_of(saved), when)
                pair.transport.release(following)
                await expect_serves(bench, pair, saved, version, f"{transport}, the next version was released")


async def _after_the_last_byte(pair: Pair, trouble: Trouble) -> None:
    """Play the controller: every replica receives the version, then all are told to drop it."""
    version = pair.sync.version + 1
    offer = pair.transport.open(version)
    try:
        await pair.workers["actor/0"].call("send_weights", offer, version, timeout_s=TIMEOUT_S)
        for worker in pair.replicas:
            await worker.call("receive_weights", offer, version, timeout_s=TIMEOUT_S)
        for worker in pair.replicas:
            await worker.call("abort_weights", timeout_s=TIMEOUT_S)
    finally:
        pair.transport.release(offer)


async def _half_way(pair: Pair, trouble: Trouble) -> None:
    """Every replica fails after some buckets."""
    count = [0]

    def broken(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        count[0] += 1
        if count[0] > 7:
            raise OSError("the network cable was pulled")
        return bucket

    trouble.on_read, trouble.only_reader = broken, -1
    await _fails(pair, trouble)


async def _by_another(pair: Pair, trouble: Trouble) -> None:
    """The first replica has received everything when the second fails at once."""

    def broken(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        raise OSError("the network cable was pulled")

    trouble.on_read, trouble.only_reader = broken, trouble.readers[0] + 1
    await _fails(pair, trouble)


async def _spoiled(pair: Pair, trouble: Trouble) -> None:
    """Both replicas receive everything, one of them another bit."""

    def flipped(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        last = list(bucket)[-1]
        changed = bucket[last].detach().clone()
        changed.reshape(-1).view(torch.uint8)[0] ^= 1
        return {**bucket, last: changed}

    trouble.on_read, trouble.only_reader = flipped, trouble.readers[0]
    await _fails(pair, trouble)


async def _fails(pair: Pair, trouble: Trouble) -> None:
    trouble.fired = 0
    try:
        await pair.sync.update(pair.sync.version + 1)
    except ArealError:
        if trouble.fired:
            return
        raise
    if not trouble.fired:
        raise Inconclusive("the fault never fired: no replica read the transport")
    raise Violation("an update whose transfer failed reported success")
