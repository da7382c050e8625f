"""A run whose processes are killed, or which is interrupted, at random moments for as long as is asked.

Knows: who is killed when, and how the run may go on.
Does not know: how a run is started and judged (`runs`).
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

from attrs import define, field
from tests.exactly_once.killed_run import CONTROLLER, CTRL_C

from . import runs, watch

SETTINGS = ("checkpoint.every_s=5", "episodes.keep=10000000")
LONGEST_S = 30.0
"""From the run's first step after one kill to the next."""
STARTING = 0.2
"""Share of the kills that come while the run still starts."""
LAST_STEPS = 20
"""What the run does after the last kill."""


@define
class Soak:
    """One run, and what was done to it."""

    machine: runs.Machine
    chance: random.Random
    endings: Counter[tuple[str, str]] = field(factory=Counter)
    """By victim and by what came of it."""
    faults: list[str] = field(factory=list)
    _pending: str | None = None
    """Whom the run has lost and may go on without."""

    def go(self, seconds: float) -> dict[str, object]:
        """Kill until the time is over, let the run end, and judge."""
        run, until = self.machine.scratch / "kills", time.monotonic() + seconds
        start = self.machine.new(run, f"steps={runs.FOR_EVER}", *SETTINGS)
        while time.monotonic() < until:
            pause, starting = self.chance.uniform(0, LONGEST_S), self.chance.random() < STARTING
            ended = not self.machine.goes_on(start, run, pause, from_a_step=not starting)
            victim = None if ended else self._strike(start)
            if victim in (None, CONTROLLER, CTRL_C):
                self._judge_end(start, victim)
                start = self.machine.again(run, f"steps={runs.FOR_EVER}", *SETTINGS)
        if self.machine.goes_on(start, run, LONGEST_S, from_a_step=True):
            start.interrupt()
            self._judge_end(start, CTRL_C)
        steps = runs.furthest_step(run) + LAST_STEPS
        last = self.machine.again(run, f"steps={steps}", *SETTINGS)
        if (code := last.wait()) == 0:
            self.faults += runs.not_recorded(run, steps) + runs.not_trained_once(run, steps)
        else:
            self.faults.append(f"resumed for the last time it ends with {code}: {last.output()[-2000:]}")
        self.faults += [*last.survivors(), *self.machine.left()]
        return {
            "seconds": round(seconds),
            "steps": steps,
            "kills": self.endings.total(),
            "endings": [{"victim": v, "ending": e, "times": n} for (v, e), n in sorted(self.endings.items())],
            "faults": self.faults,
        }

    def _strike(self, start: runs.Start) -> str:
        """Kill somebody who lives, or press Ctrl-C."""
        there = watch.by_role(start.mark, start.process.pid)
        victim = self.chance.choice([*sorted(there), CTRL_C])
        if victim == CTRL_C:
            start.interrupt()
            return victim
        if self._pending is not None:
            self._tell(self._pending, "went on", start)
        self._pending = None if victim == CONTROLLER else victim
        there[victim].send_signal(signal.SIGKILL)
        return victim

    def _judge_end(self, start: runs.Start, victim: str | None) -> None:
        """Say what came of a start that has ended, or is about to: nothing of it may be left."""
        run, code = self.machine.scratch / "kills", start.wait()
        if victim == CONTROLLER:
            found = [] if code == -signal.SIGKILL else [f"killed, it ends with {code}"]
        elif victim == CTRL_C and not (code == 1 and self._pending):
            found = runs.interrupted_badly(code, start.output(), run)
        elif code == 1 and self._pending and "Traceback" not in start.output():
            found = []  # more losses than the run may have, or one before its first step
        else:
            found = [f"it ends with {code} after the loss of {self._pending}: {start.output()[-2000:]}"]
        then = "resumed" if runs.resumable(run) else "began anew"
        if self._pending:
            self._tell(self._pending, f"ended with an error, {then}" if victim is None else "went on", start)
            self._pending = None
        if victim is not None:
            self._tell(victim, then, start)
        self.faults += [f"{start.log.name}: {fault}" for fault in [*found, *start.survivors()]]
        print(*found, sep="\n", end="", flush=True)

    def _tell(self, victim: str, ending: str, start: runs.Start) -> None:
        self.endings[victim, ending] += 1
        step = runs.last_step(self.machine.scratch / "kills")
        print(f"{self.endings.total()} {start.log.name} step {step}: {victim} {ending}", flush=True)
