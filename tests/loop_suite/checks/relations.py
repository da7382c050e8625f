"""The same run otherwise: stopped after every step, served by other replicas, evaluated meanwhile, rows written out.

Knows: which runs train the same batches, to the bit.
Does not know: what is right in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.benches.rollouts import greedy

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.inference import SamplingParams
from areal_core.contract.trajectory import from_generation
from areal_core.testing.engines import scripted_token

from ..bench import indices
from ..trained import Columns, alike, packed
from .staleness import Lengths

if TYPE_CHECKING:
    from areal_core.contract.inference import GenerationRequest
    from areal_core.contract.workflow import Session

    from ..bench import LoopBench

EPOCHS = 5


async def _run(bench: LoopBench, steps: int, **options: Any) -> list[Columns]:
    """Return the batches of a run. Any: as for `rollouts`."""
    async with bench.rollouts(**options) as side:
        return [packed(await side.step()) for _ in range(steps)]


@check("loop.pool.any_number", level=Level.LOOP, law=1, spec="index#law-by-law")
async def any_number(bench: LoopBench) -> None:
    """However many replicas serve a run, it trains the same tokens, log-probs, versions and rewards, in one order."""
    for staleness in (0, 2):
        runs = {
            replicas: await _run(
                bench, 8, prompts=3, group=4, staleness=staleness, num_replicas=replicas, length=Lengths(staleness)
            )
            for replicas in (1, 2, 3)
        }
        for replicas in (2, 3):
            alike(f"bound {staleness}, {replicas} replicas instead of one", runs[replicas], runs[1])


@check("loop.evaluate.no_trace", level=Level.LOOP, law=4, spec="index#law-by-law")
async def no_trace(bench: LoopBench) -> None:
    """A run that is evaluated after every step trains what it trains without, to the bit; tokens do so at any bound."""
    options: dict[str, Any] = {"prompts": 2, "group": 2, "num_replicas": 2, "length": Lengths(3), "num_rows": 6}
    rows = [{"input_ids": [5, 4], "number": number} for number in range(3)]

    async def batches(steps: int, staleness: int, *, evaluated: bool) -> list[list[Any]]:
        async with bench.rollouts(**options, staleness=staleness, shuffle=True) as side:
            made = []
            for _ in range(steps):
                if evaluated:
                    await side.drive(side.executor.evaluate(rows, greedy()))
                made.append(await side.step())
            return made

    plain, watched = [await batches(8, 0, evaluated=asked) for asked in (False, True)]
    alike("evaluated before every step", list(map(packed, watched)), list(map(packed, plain)))
    # With prompts ahead an evaluation is time in which they go on: of other versions, in other batches.
    ahead, seen = [
        {group.task.index: group for groups in await batches(8, 2, evaluated=asked) for group in groups}
        for asked in (False, True)
    ]
    both = sorted(ahead.keys() & seen.keys())
    expect(len(both) >= 12, f"of 16 prompts {len(both)} are trained both with evaluations and without")
    for index in both:
        one, other = [packed([made[index]], but=("tokens/versions",)) for made in (seen, ahead)]
        alike(f"prompt {index}, ahead of the policy while it is evaluated", [one], [other])


@check("loop.tasks.resumed", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def resumed(bench: LoopBench) -> None:
    """Stopped after every step and resumed, for five epochs, a run trains what it trains without a stop, to the bit."""
    options: dict[str, Any] = {
        "prompts": 2,
        "group": 2,
        "staleness": 0,
        "num_rows": 5,
        "shuffle": True,
        "length": Lengths(1),
    }
    steps = EPOCHS * 5 // 2
    found, state = list[Columns](), None
    for _ in range(steps):
        async with bench.rollouts(**options, state=state) as side:
            found.append(packed(await side.step()))
            state = json.loads(json.dumps(side.executor.state()))
    alike(f"{steps} steps, each by a run of its own", found, await _run(bench, steps, **options))


class _ByRow:
    """A workflow whose requests draw by their row, whatever epoch it comes in."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        """Generate once. Any: as in the contract."""
        asked = SamplingParams(seed=1000 + data["number"], max_new_tokens=8)
        return from_generation(data["input_ids"], await engine.generate(data["input_ids"], asked), data["number"])


def _by_row(request: GenerationRequest) -> int:
    return scripted_token(request.sampling.seed, 0) % 4 + 1


@check("loop.tasks.epochs_written_out", level=Level.LOOP, law=4, spec="index#law-by-law")
async def epochs_written_out(bench: LoopBench) -> None:
    """Epochs in the order of the rows are one epoch over rows that are repeated as often, whatever the bound."""
    rows = [{"input_ids": [3 + number, 4], "number": number} for number in range(5)]
    for staleness in (0, 2):
        options: dict[str, Any] = {"prompts": 2, "group": 1, "staleness": staleness}
        options |= {"workflow": _ByRow(), "length": _by_row}
        written = await _run(bench, 12, rows=rows * EPOCHS, **options)
        alike(f"bound {staleness}, {EPOCHS} epochs of 5 rows", await _run(bench, 12, rows=rows, **options), written)
    async with bench.rollouts(rows=rows, **options) as side:
        order = [index for _ in range(12) for index in indices(await side.step())]
    expect(sorted(order) == list(range(24)), f"in twelve batches of two, tasks {sorted(order)} were trained on")
