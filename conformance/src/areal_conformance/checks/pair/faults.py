"""An update that fails or is given up says who failed and leaves nothing: the next one brings all of the trainer's.

Knows: faults of the transport and of workers, on either side, half way and after the last byte.
Does not know: engines, or where they keep what they have not committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.pair import TIMEOUT_S, Pair, PairBench
from areal_conformance.benches.pair_faults import Trouble
from areal_conformance.benches.pair_workers import InProcessWorker
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import atol, expect_holds, expect_serves, gap, said, tensors_of, truth
from areal_conformance.oracles.infer_judging import raises
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.errors import ArealError, FingerprintMismatch, StorageError, WeightSyncError, WorkerDied
from areal_core.contract.weights import TensorSpec, WeightManifest


async def fails(pair: Pair, what: str, *naming: str, kind: type[ArealError] = ArealError) -> None:
    """Expect the update to fail with an error of this kind that says these words."""
    error = await raises(kind, partial(pair.sync.update, pair.sync.version + 1), f"{what}: the update")
    for part in naming:
        expect(part in str(error), f"{what}: the error must name {part}, it says {error}")


@contextlib.asynccontextmanager
async def ahead(bench: PairBench, trouble: Trouble, **fields: Any) -> AsyncIterator[tuple[Pair, Path]]:
    """Give a pair whose trainer is a step ahead, and the folder its replicas serve. Any: arguments of `pair`."""
    async with bench.pair(wrap=trouble.wrap, **fields) as pair:
        old = await pair.saved(bench.folder / f"old-{fields.get('transport', '')}")
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        yield pair, old


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
        async with ahead(bench, trouble, replicas=2, transport=transport) as (pair, old):
            trouble.on_read, trouble.only_reader = _flip_one, trouble.readers[0] + 1
            await _fails(pair, trouble, "a flipped bit", "rollout/", kind=FingerprintMismatch)
            trouble.heal()
            await recovers(bench, pair, old, f"a flipped bit, {transport}")


@check("pair.fault.sender_spoiled", level=Level.FAULTS, law=7, spec="train#send_weights", deadline_s=120.0)
async def sender_spoiled(bench: PairBench) -> None:
    """Bytes that the sink holds otherwise than the engine does are the trainer's to find: FingerprintMismatch."""
    trouble = Trouble()
    async with ahead(bench, trouble) as (pair, old):
        trouble.on_write = _flip_one
        await fails(pair, "bytes spoiled on their way into the sink", kind=FingerprintMismatch)
        trouble.heal()
        await recovers(bench, pair, old, "spoiled bytes")


@check("pair.fault.renamed", level=Level.FAULTS, law=7, spec="infer#receive_weights", deadline_s=120.0)
async def renamed(bench: PairBench) -> None:
    """A manifest with a name too many, too few or another is refused by the replicas, and nothing changes."""

    def first(manifest: WeightManifest, name: str) -> TensorSpec:
        return attrs.evolve(manifest.tensors[0], name=name)

    changes: dict[str, Callable[[WeightManifest], dict[str, Any]]] = {  # Any: fields of a manifest
        "without its last name": lambda made: {"tensors": made.tensors[:-1]},
        "with another name": lambda made: {"tensors": (first(made, "model.other.weight"), *made.tensors[1:])},
        "with one name more": lambda made: {"tensors": (*made.tensors, first(made, "model.more.weight"))},
        "of another version": lambda made: {"version": made.version + 1},
    }
    trouble = Trouble()
    async with ahead(bench, trouble) as (pair, old):
        for how, change in changes.items():
            trouble.on_manifest = lambda made, change=change: attrs.evolve(made, **change(made))
            await fails(pair, f"a manifest {how}", "rollout/0", kind=WeightSyncError)
            await expect_serves(bench, pair, old, pair.sync.version, f"a manifest {how}")
        trouble.heal()
        await recovers(bench, pair, old, "manifests that did not fit")


@check("pair.fault.replica", level=Level.FAULTS, law=7, spec="weights", deadline_s=120.0)
async def replica(bench: PairBench) -> None:
    """A replica that cannot receive, first or last of two, keeps both on the old version and is named."""
    trouble = Trouble()
    async with ahead(bench, trouble, replicas=2) as (pair, old):
        for which in (0, 1):
            trouble.on_read, trouble.only_reader = _pulled, trouble.readers[0] + which
            await _fails(pair, trouble, "a replica that cannot receive", "rollout/", "network cable")
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
    async with ahead(bench, trouble) as (pair, old):
        trouble.on_write = full
        await fails(pair, "a full disk", "no room for weights", kind=StorageError)
        expect(count[0] == 3, f"after the sink's error the engine wrote {count[0] - 3} buckets more")
        trouble.heal()
        await recovers(bench, pair, old, "a full disk")


def _flip_one(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Flip the lowest bit of the last element of the last tensor of a bucket."""
    changed = {name: tensor.detach().clone() for name, tensor in bucket.items()}
    last = changed[list(changed)[-1]]
    last.reshape(-1).view(torch.uint8)[-last.element_size()] ^= 1
    return changed


def _pulled(bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    raise OSError("the network cable was pulled")


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
            _pulled(bucket)
        return bucket

    trouble.on_read, trouble.only_reader = broken, -1
    await _fails(pair, trouble, "replicas that fail half way")


async def _by_another(pair: Pair, trouble: Trouble) -> None:
    """The first replica has received everything when the second fails at once."""
    trouble.on_read, trouble.only_reader = _pulled, trouble.readers[0] + 1
    await _fails(pair, trouble, "a replica that fails at once")


async def _spoiled(pair: Pair, trouble: Trouble) -> None:
    """Both replicas receive everything, one of them another bit."""
    trouble.on_read, trouble.only_reader = _flip_one, trouble.readers[0]
    await _fails(pair, trouble, "a flipped bit")


async def _fails(pair: Pair, trouble: Trouble, what: str, *naming: str, kind: type[ArealError] = ArealError) -> None:
    """As `fails`, because of what a replica reads; Inconclusive if none read."""
    trouble.fired = 0
    try:
        await fails(pair, what, *naming, kind=kind)
    finally:
        if not trouble.fired:
            raise Inconclusive("the fault never fired: no replica read the transport")
