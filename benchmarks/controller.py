"""What an episode costs the controller of a real run, end to end: its processor time, all threads, from step to step.

The quickstart's own run: engines in workers, a reward in a process, every episode kept, encrypted calls. Its start, its
first fifth of steps and its end do not count. Beside it the processor time of every other process, for each episode.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import family
import frame
import runs

TASK, STEPS, REPEATS, PERIOD_S = "spell", 150, 5, 0.05
EPISODES = 128
"""Of a step of the preset."""
MICROSECONDS = 250.0
"""What the controller may take of an episode."""


def for_each_episode(samples: Sequence[tuple[int, float]], steps: int) -> float:
    """Return the microseconds between the first sample after a fifth of the steps and the last before the end."""
    counted = [sample for sample in samples if steps / 5 <= sample[0] < steps]
    (first, before), (last, after) = counted[0], counted[-1]
    return (after - before) / ((last - first) * EPISODES) * 1e6


def main() -> int:
    """Measure several runs."""
    options = frame.parser(__doc__).parse_args()
    steps, repeats = (30, 1) if options.quick else (STEPS, REPEATS)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = runs.starting_model(TASK, Path(scratch), quick=options.quick)
        for number in range(repeats):
            folder = Path(scratch) / f"run-{number}"
            for name, samples in family.train(
                TASK, model, folder, [f"steps={steps}"], family.processor_seconds, every_s=PERIOD_S
            ).items():
                found.setdefault(name, []).append(for_each_episode(samples, steps))
    spread = {name: frame.spread(each) for name, each in found.items()}
    result = frame.Result(
        name="controller",
        figure=frame.Figure.of(found[family.CONTROLLER], MICROSECONDS),
        what=f"processor time of the controller for an episode of a real run / {MICROSECONDS:g} microseconds",
        details={"microseconds_an_episode": spread, "steps": steps},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
