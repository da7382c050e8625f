"""After an update that was given up, nothing of it is left: the next one brings the trainer's tensors, all of them.

Knows: updates given up half way, after the last byte, and by the word of another replica.
Does not know: where an engine keeps what it has not committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import torch
from torch import Tensor

from areal_conformance.benches.pair import TIMEOUT_S, Pair, PairBench
from areal_conformance.benches.pair_faults import Trouble
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.holding import expect_holds
from areal_conformance.checks.pair.judging import expect_serves, tensors_of
from areal_conformance.outcome import Inconclusive, Violation
from areal_core.contract.errors import ArealError

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
