"""Ctrl-C at random moments, each run resumed; two runs in one folder tree; two resumes of one run.

Knows: when Ctrl-C is pressed, and what may come of it.
Does not know: how a run is started and judged (`runs`).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from attrs import define, field

from areal_core.cli.main import BAD_INPUT

from . import runs

SETTINGS = ("checkpoint.every_steps=10",)
LONGEST_S = 15.0
"""From a start or its first step to Ctrl-C."""
STARTING = 0.4
"""Share of those that are counted from the start: while Python starts, or the plan is made, or workers."""
LAST_STEPS = 10


@define
class Lane:
    """One run that is interrupted again and again."""

    machine: runs.Machine
    name: str
    chance: random.Random
    endings: Counter[str] = field(factory=Counter)
    faults: list[str] = field(factory=list)

    def go(self, times: int, until: float) -> Lane:
        """Press Ctrl-C so often, or as often as the time allows, then let the run end."""
        run = self.machine.scratch / self.name
        for number in range(1, times + 1):
            if time.monotonic() > until:
                break
            starting, pause = self.chance.random() < STARTING, self.chance.uniform(0, LONGEST_S)
            moment = f"{self.name}, Ctrl-C {number} {pause:.1f} s after its {'start' if starting else 'first step'}"
            start = self.machine.again(run, f"steps={runs.FOR_EVER}", *SETTINGS)
            if self.machine.goes_on(start, run, pause, from_a_step=not starting):
                start.interrupt()
                found = runs.interrupted_badly(start.wait(), start.output(), run)
            else:
                found = [f"it ended before: {start.output()[-2000:]}"]
            found += start.survivors()
            then = "resumed" if runs.resumable(run) else "began anew"
            self.endings[f"{'starting' if starting else 'running'}, {then}"] += 1
            self.faults += [f"{moment}: {each}" for each in found]
            print(f"{moment}, {then} at step {runs.last_step(run)}", *found, flush=True)
        steps = runs.furthest_step(run) + LAST_STEPS
        self.faults += _judge(run, self.machine.again(run, f"steps={steps}", *SETTINGS), steps)
        return self


def soak(machine: runs.Machine, chance: random.Random, times: int, at_once: int, minutes: float) -> dict[str, object]:
    """Interrupt so often, so many runs at a time, for so long at most; then the pairs."""
    until = time.monotonic() + 60 * minutes
    lanes = [Lane(machine, f"run-{number}", random.Random(chance.random())) for number in range(at_once)]
    shares = [times // at_once + (number < times % at_once) for number in range(at_once)]
    with ThreadPoolExecutor(at_once) as jobs:
        try:
            done = list(jobs.map(Lane.go, lanes, shares, repeat(until)))
        except BaseException:
            machine.close()  # the other lanes end, too
            raise
    endings = sum((lane.endings for lane in done), Counter[str]())
    last = machine.scratch / lanes[0].name
    return {
        "interrupts": endings.total(),
        "endings": dict(endings),
        "faults": [*(fault for lane in done for fault in lane.faults), *machine.left()],
        "two_runs": two_runs(machine),
        "two_resumes": [two_resumes(machine, last, chance.uniform(0, 3)) for _ in range(3)],
    }


def two_runs(machine: runs.Machine) -> dict[str, object]:
    """Run two side by side, in one folder tree, on one folder of sockets."""
    folders = [machine.scratch / "side" / name for name in ("a", "b")]
    starts = [machine.new(folder, "steps=100", *SETTINGS) for folder in folders]
    faults: list[str] = []
    for folder, start in zip(folders, starts, strict=True):
        faults += _judge(folder, start, 100)
    return {"steps": 100, "faults": [*faults, *machine.left()]}


def two_resumes(machine: runs.Machine, run: Path, apart_s: float) -> dict[str, object]:
    """Resume one run twice at almost the same time: one goes on, the other is told why it does not."""
    steps = runs.last_step(run) + 100
    first = machine.resume(run, f"steps={steps}")
    time.sleep(apart_s)  # how far apart is the point
    second = machine.resume(run, f"steps={steps}")
    codes = {start.wait(): start for start in (first, second)}
    if set(codes) != {0, BAD_INPUT}:
        outputs = [start.output()[-1000:] for start in (first, second)]
        return {"apart_s": round(apart_s, 2), "faults": [f"they end with {sorted(map(str, codes))}: {outputs}"]}
    refusal = codes[BAD_INPUT].output()
    faults = [] if "is in use" in refusal and "Traceback" not in refusal else [f"it is refused so: {refusal}"]
    faults += _judge(run, codes[0], steps)
    return {"apart_s": round(apart_s, 2), "faults": [*faults, *codes[BAD_INPUT].survivors(), *machine.left()]}


def _judge(run: Path, start: runs.Start, steps: int) -> list[str]:
    if (code := start.wait()) != 0:
        return [f"{run.name} ends with {code}: {start.output()[-2000:]}"]
    return [*runs.not_recorded(run, steps), *runs.not_trained_once(run, steps), *start.survivors()]
