"""What a pause hands back or frees: every token computed, every slot given up.

Knows: the tokens that status counts, and requests that end while nothing is computed.
Does not know: updates during a pause (`versions`).
"""

from __future__ import annotations

import asyncio
import contextlib

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.pause import started
from areal_conformance.oracles.infer_judging import expect_policies, prompts
from areal_conformance.outcome import Violation, expect
from areal_core.contract.inference import PauseMode


@check("infer.pause.abort_returns_all", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.abort",))
async def abort_returns_all(bench: InferBench) -> None:
    """`pause(abort)` returns every token computed: outputs are together as long as status has counted."""
    keeps = bench.target.claimed("pause.keep")
    async with bench.engine(max_concurrent=4) as engine:
        for number, frozen in enumerate((False, keeps, False)):
            before = (await engine.status()).tokens_generated
            requests, calls = started(bench, engine, 3 + number, seed=25 + number)
            await bench.until_generated(engine, 9 + 4 * number)
            if frozen:
                await engine.pause(PauseMode.KEEP)
                await bench.turns(20)
            await engine.pause(PauseMode.ABORT)
            parts = await bench.results(calls)
            counted = (await engine.status()).tokens_generated - before
            returned = [len(part.output_ids) for part in parts]
            await engine.resume()
            told = f"{counted} tokens were computed until pause(abort), requests came back with {returned}"
            expect(sum(returned) == counted, f"{told}, {sum(returned)} in all")
            expect_policies(bench, zip(parts, requests, strict=True))


@check("infer.cancel.while_paused", level=Level.SINGLE, law=10, spec="infer#generate", requires=("pause.keep",))
async def while_paused(bench: InferBench) -> None:
    """A request cancelled during a pause gives its place up during the pause, not with the next `resume`."""
    async with bench.engine(max_concurrent=3) as engine:
        calls = bench.start(engine, bench.asks(prompts(5, seed=29), max_new_tokens=LONG))
        await bench.until_generated(engine, 12)
        await engine.pause(PauseMode.KEEP)
        for number, doomed in enumerate((calls[1], calls[4], calls[0], calls[2], calls[3])):
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
            left = 4 - number

            async def freed(left: int = left) -> bool:
                status = await engine.status()
                return status.num_running + status.num_waiting == left and status.num_running <= left

            with contextlib.suppress(Violation):  # said below in the words of the law it is about
                await bench.until(freed, "a place to be free", seconds=2.0)
            status = await engine.status()
            told = f"{number + 1} of 5 requests were cancelled during a pause: {left} are left"
            shown = f"status shows {status.num_running} running and {status.num_waiting} waiting"
            expect(await freed(), f"{told}, {shown}")
        expect((await engine.status()).paused, "the engine was not resumed, its status must show paused")
        await engine.resume()
        request = bench.ask(5, 9)
        expect_policies(bench, [(await bench.generate(engine, request), request)])
