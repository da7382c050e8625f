"""Seconds that come with an answer hold what the request waited for: told by holds the check itself measures.

Knows: a pause, which holds whoever has a place and whoever waits for one.
Does not know: how long anything takes: an engine's seconds are compared with what they must contain, or lie within.
"""

from __future__ import annotations

import asyncio
import time

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation, InferenceEngine, PauseMode, Timings

CLOCKS_S = 0.01
"""How far two clocks may be apart over a second or so."""
TURNS = 400
"""Of the event loop while an engine is held: 20 thousandths of a second and more."""


async def held(bench: InferBench, engine: InferenceEngine, call: asyncio.Task[Generation]) -> float:
    """Pause an engine for many turns of the event loop; return for how many seconds at least that froze a call."""
    await engine.pause(PauseMode.KEEP)
    began = time.monotonic()
    await bench.turns(TURNS)
    frozen = 0.0 if call.done() else time.monotonic() - began
    await engine.resume()
    return frozen


@check("infer.output.timings", level=Level.SINGLE, law=0, spec="infer#Timings", requires=("pause.keep",))
async def timings(bench: InferBench) -> None:
    """The time for a place, and that after the first token, hold what a request waited for, and no more than passed."""
    async with bench.engine(max_concurrent=1) as engine:
        running = bench.call(engine.generate(bench.ask(5, 9, name="running", max_new_tokens=LONG)))
        await bench.until_generated(engine, 2)
        began = time.monotonic()
        behind = bench.call(engine.generate(bench.ask(5, 7, name="behind", max_new_tokens=3)))
        await bench.turns(20)
        waited = await held(bench, engine, running)
        running.cancel()
        told = (await within(bench, behind, began)).queued_s
        expect(told >= waited - CLOCKS_S, f"{waited:.3f} s and more went by without a place, queued_s is {told:.3f}")

        began = time.monotonic()
        call = bench.call(engine.generate(bench.ask(7, 9, name="frozen", max_new_tokens=300)))
        await bench.until_generated(engine, 1)
        before = time.monotonic() - began
        waited = await held(bench, engine, call)
        frozen = await within(bench, call, began)
        expect(frozen.queued_s <= before + CLOCKS_S, f"{before:.3f} s brought a first token, queued_s of {frozen}")
        rest = frozen.total_s - frozen.first_token_s
        expect(rest >= waited - CLOCKS_S, f"{waited:.3f} s went by after the first token, {rest:.3f} s are told")


async def within(bench: InferBench, call: asyncio.Task[Generation], began: float) -> Timings:
    """Return the timings of a call, and expect no more seconds than have passed since it was made."""
    (result,) = await bench.results([call])
    passed, told = time.monotonic() - began, result.timings
    expect(told.total_s <= passed + CLOCKS_S, f"a request was answered within {passed:.3f} s, told are {told}")
    return told
