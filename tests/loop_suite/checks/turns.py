"""Shared devices: one side at a time, nobody waits for ever, and no request is lost between the turns.

Knows: who may hold memory of the devices when, on a clock that is stepped.
Does not know: what is trained, or which weights travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.benches.shared_devices import SharedBench

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.fleet.turns import Stage

if TYPE_CHECKING:
    from ..bench import LoopBench

_LENGTH = 6
_ROLES = ("actor", "critic", "reference")


def _play(bench: LoopBench, scene: Callable[[SharedBench], Awaitable[None]], replicas: int = 2) -> None:
    """Play a scene in an event loop of its own; afterwards both sides never were on the devices at once."""

    async def play() -> None:
        side = SharedBench(replicas, length=_LENGTH, roles=_ROLES, turns=bench.parts.turns)
        await scene(side)
        expect(not side.device.wrong, "; ".join(side.device.wrong[:3]))

    asyncio.run(play())


async def _done(side: SharedBench, *work: asyncio.Future[Any]) -> None:  # Any: whatever each returns
    """Step the clock until all of it is done."""
    try:
        await side.until(*work)
    except AssertionError as late:
        expect(False, f"it takes for ever: {late}")
    for each in work:
        error = each.exception()
        expect(error is None, f"{type(error).__name__}: {error}")


def _ask(side: SharedBench, number: int) -> asyncio.Future[Generation]:
    sampling = SamplingParams(max_new_tokens=16, seed=number)
    request = GenerationRequest(request_id=f"r{number}", input_ids=(5, 6), sampling=sampling)  # type: ignore[arg-type]
    return asyncio.ensure_future(side.pool.generate(request))


@check("loop.turns.one_side", level=Level.LOOP, law=7, spec="index#law-by-law")
def one_side(bench: LoopBench) -> None:
    """Over several steps every role leaves before the fleet wakes, and the fleet sleeps before any role comes."""

    async def scene(side: SharedBench) -> None:
        for version in (1, 2, 3):
            await _done(side, asyncio.ensure_future(side.train()))
            expect(side.sync.version == version, f"the fleet serves {side.sync.version} after step {version}")
            expect(not side.device.trainers, f"{side.device.trainers} are on the devices in the fleet's turn")
        changes = [f"{role} {what}" for what in ("onload", "offload") for role in _ROLES]
        expect(side.device.log == 3 * changes, f"memory changed hands as {side.device.log[:8]}")

    _play(bench, scene)


@check("loop.turns.requests", level=Level.LOOP, law=1, spec="index#law-by-law")
def requests(bench: LoopBench) -> None:
    """A request that a turn interrupts goes on under the new weights, whole; one that comes meanwhile waits."""

    async def scene(side: SharedBench) -> None:
        asked = [_ask(side, number) for number in range(3)]
        await side.clock.advance(2.0)
        step = asyncio.ensure_future(side.train())
        await side.clock.advance(3.0)
        asked.append(_ask(side, 3))
        await _done(side, step, *asked)
        for each in asked:
            made = each.result()
            expect(len(made.output_ids) == _LENGTH, f"{len(made.output_ids)} of {_LENGTH} tokens came back")
            expect(made.version_spans[-1].version == 1, f"its last tokens are stamped {made.version_spans[-1]}")

    _play(bench, scene)


@check("loop.turns.lost_fleet", level=Level.FAULTS, law=9, spec="index#law-by-law")
def lost_fleet(bench: LoopBench) -> None:
    """Whenever in a step the only replica dies, another one starts in the fleet's turn and takes the weights."""
    for when in (0.5, 1.5, 3.0, 4.5, 5.5, 6.5):

        async def scene(side: SharedBench, when: float = when) -> None:
            step, asked = asyncio.ensure_future(side.train()), _ask(side, 0)
            await side.clock.advance(when)
            side.launcher.workers["rollout.0/0"].die()
            await _done(side, step, asked)
            expect(side.sync.version == 1, f"the fleet serves {side.sync.version} after step 1")

        _play(bench, scene, replicas=1)


@check("loop.turns.unable", level=Level.FAULTS, law=10, spec="index#law-by-law")
def unable(bench: LoopBench) -> None:
    """A replica that cannot be paused or put to sleep is gone before the trainers come, and the others go on."""
    for method in ("pause", "sleep"):

        async def scene(side: SharedBench, method: str = method) -> None:
            side.engine(0).refuses.add(method)
            await _done(side, asyncio.ensure_future(side.train()))
            expect(side.launcher.workers["rollout.0/0"].dead, f"a replica that cannot {method} still lives")
            expect(side.pool.num_serving > 0, "nobody serves")

        _play(bench, scene)


@check("loop.turns.late_start", level=Level.FAULTS, law=7, spec="index#law-by-law")
def late_start(bench: LoopBench) -> None:
    """A replica that is made in the trainers' turn loads no weights in it; one that loads them is waited for."""

    async def scene(side: SharedBench) -> None:
        step = asyncio.ensure_future(side.train(seconds=20.0))
        await side.clock.advance(5.0)
        await asyncio.wait(
            {asyncio.ensure_future(side.fleet.resize(3)), asyncio.ensure_future(side.clock.advance(9.0))}
        )
        await _done(side, step)
        resized = asyncio.ensure_future(side.fleet.resize(4))
        await side.clock.advance(3.0)
        side.engine(3).loads()
        await _done(side, resized, asyncio.ensure_future(side.train()))

    _play(bench, scene)


@check("loop.turns.cut_short", level=Level.FAULTS, law=4, spec="index#law-by-law")
def cut_short(bench: LoopBench) -> None:
    """A change of hands that was cut short tells where it stood, and the trainers can be asked back to save."""
    for when, at in ((0.5, Stage.SLEEP), (1.5, Stage.ONLOAD), (2.5, Stage.OFFLOAD), (3.5, Stage.WAKE)):

        async def scene(side: SharedBench, when: float = when, at: Stage = at) -> None:
            async def there_and_back() -> None:
                await side.turns.train()
                await side.turns.generate()

            change = asyncio.ensure_future(there_and_back())
            await side.clock.advance(when)
            change.cancel()
            await side.clock.settle()
            expect(side.turns.stage is at, f"the stage is {side.turns.stage}, what was cut short is {at}")
            await _done(side, asyncio.ensure_future(side.turns.train()))
            expect(side.device.trainers == set(_ROLES), f"on the devices are {sorted(side.device.trainers)}")

        _play(bench, scene)
