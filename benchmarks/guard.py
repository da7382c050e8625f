"""Has an episode become dearer for the controller? Its processor time in calibrated steps, against what is committed.

A calibrated step is a task of asyncio that gives its turn away twice and keeps a few small objects: what an episode is
made of, without areal. Both are measured in turns in one process, so that a slower machine, or a busy one, slows both.
`--write` commits to today's figure; without it the exit code is 1 where an episode costs `TOLERANCE` times as much.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import frame
from scale import Case, measure

NAME = "guard"
TOLERANCE = 1.25
CASE = Case(in_flight=1_000, replicas=8)
EPISODES, STEPS = 4_000, 20_000


async def calibrated_steps(number: int) -> float:
    """Return the processor seconds of so many calibrated steps."""

    async def step(place: int) -> dict[str, object]:
        kept: dict[str, object] = {"place": place, "tokens": tuple(range(32))}
        for _ in range(2):
            await asyncio.sleep(0)
            kept["again"] = [kept["place"]]
        return kept

    began = time.process_time()
    for first in range(0, number, CASE.in_flight):
        await asyncio.gather(*(step(first + place) for place in range(CASE.in_flight)))
    return time.process_time() - began


def main() -> int:
    """Measure both in turns and compare with what was committed."""
    parser = frame.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="commit to the figure found")
    parser.set_defaults(busy=True)  # other work slows both sides alike
    options = parser.parse_args()
    frame.one_thread()
    ratios = []
    for number in range(2 if options.quick else 6):
        episode = frame.run(measure(CASE, EPISODES))["microseconds"]
        step = frame.run(calibrated_steps(STEPS)) / STEPS * 1e6
        if number:
            ratios.append(episode / step)
    found = frame.Figure.of(ratios)
    committed = frame.RESULTS / f"{NAME}.json"
    if options.write or options.quick:
        result = frame.Result(
            name=NAME,
            figure=found,
            what=f"processor time of an episode / of a calibrated step of asyncio, {CASE.in_flight} in flight",
            details={"ratios": ratios},
        )
        return frame.finish(result, quick=options.quick)
    was = json.loads(committed.read_text())["ratio"]
    print(f"calibrated steps that an episode costs: {found}; committed {was:.1f}")
    if found.ratio <= TOLERANCE * was:
        return 0
    print(f"that is more than {TOLERANCE} times as much: find what made it dearer, or commit to it with --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
