"""What is known of a run from its two journals, kept up to date, in bounded memory.

Knows: the keys of `metrics.jsonl` and `events.jsonl` that every run has.
Does not know: episodes (`areal_episodes`), or how anything is drawn (`charts`).
"""

from __future__ import annotations

import json
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice

from attrs import frozen

from areal_core.loop.run_folder import RunFolder
from areal_core.observe.events import EVALUATED, RUN_ENDED, RUN_STARTED
from areal_view.lines import GrowingLines, Record
from areal_view.runs import Run
from areal_view.series import Curves, Point, Series, numbers

MAX_STEPS = 100_000
"""Steps whose times are kept; of a longer run the last ones."""
MAX_EVENTS = 2_000
MAX_OPEN = 64
"""Runs that are followed at once; the one looked at longest ago is read anew when it is asked for again."""
_EVERY_STEP = {"batch_handed_over", "weights_unchanged", "episode_finished"}
"""Events that only repeat what metrics say."""
RATE = "rate:"
"""Before the name of a running total: how much of it there was per second."""
FLEET_CLOCK = "infer_wall_s"
"""The fleet is read now and then: its totals are of this time, not of the step's."""
_OF_FLEET = {"tokens_generated", "infer_busy_s"}
EVALUATION = "eval_reward"
"""Taken from events, which know of the evaluation before the first step."""
_PARTS = ("wait_s", "turn_s", "train_s", "sync_s")
_COLUMNS = 8
"""Numbers kept of the times of a step."""
_MAX_TEXT = 600


@frozen(kw_only=True)
class Told:
    """How one metric began, and where it is."""

    metric: str
    first: float | None
    last: float | None


@frozen(kw_only=True)
class StepTimes:
    """When a step began, and what it spent its seconds on, in this order; then it was evaluated.

    Example: StepTimes(step=7, start=1.7e9, wait_s=0.2, turn_s=0.0, train_s=1.0, sync_s=0.1, other_s=0.0, eval_s=0.0)
    """

    step: int
    start: float
    wait_s: float
    turn_s: float
    """Devices that trainers and fleet share change hands, half of it after the training."""
    train_s: float
    sync_s: float
    other_s: float
    """Checkpoints, mostly."""
    eval_s: float

    @classmethod
    def of(cls, record: Record) -> StepTimes | None:
        """Read a line of `metrics.jsonl`, written at the end of its step; None if it lacks times."""
        known = dict(numbers(record))
        if not {"step", "time", "seconds"} <= set(known):
            return None
        wait_s, turn_s, train_s, sync_s = (max(0.0, known.get(part, 0.0)) for part in _PARTS)
        eval_s, seconds = max(0.0, known.get("eval_s", 0.0)), max(0.0, known["seconds"])
        return cls(
            step=int(known["step"]),
            start=known["time"] - seconds - eval_s,
            wait_s=wait_s,
            turn_s=turn_s,
            train_s=train_s,
            sync_s=sync_s,
            other_s=max(0.0, seconds - wait_s - turn_s - train_s - sync_s),
            eval_s=eval_s,
        )

    @property
    def end(self) -> float:
        """Return when its line was written."""
        return self.start + self.wait_s + self.turn_s + self.train_s + self.sync_s + self.other_s + self.eval_s


@frozen(kw_only=True)
class Event:
    """Something that happened, and the rest of its line as text.

    Example: Event(time=1.7e9, kind="replica_lost", text="worker: rollout/0 · why: ...", error=False)
    """

    time: float
    kind: str
    text: str
    error: bool


class RunState:
    """One run, followed. Its methods may be called from any thread."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()
        self.started: float = 0.0
        """When the run began, in seconds since 1970; 0 if it does not say."""
        self._forget_metrics()
        self._forget_events()
        folder = run.folder
        self._metrics = GrowingLines(folder / "metrics.jsonl", take=self._step, forget=self._forget_metrics)
        self._events = GrowingLines(folder / "events.jsonl", take=self._event, forget=self._forget_events)

    def refresh(self) -> None:
        """Read what the run wrote since."""
        with self._lock:
            self._metrics.read()
            self._events.read()

    @property
    def caught_up(self) -> bool:
        """Tell whether all that was written is read."""
        return self._metrics.caught_up and self._events.caught_up

    @property
    def num_broken(self) -> int:
        """Return how many lines could not be read."""
        return self._metrics.num_broken + self._events.num_broken

    def status(self) -> str:
        """Return finished, stopped, failed, running, or crashed."""
        if self._ended:
            return self._ended
        return "running" if RunFolder(self.run.folder).live() else "crashed"

    def names(self) -> Sequence[str]:
        """Return the metrics there are."""
        with self._lock:
            return self._curves.names()

    def told(self) -> Told:
        """Return what one looks at first: the reward, or the loss of a run that has none."""
        metric = next((name for name in ("reward", "loss") if self.points(name)), "reward")
        points = self.points(metric)
        return Told(metric=metric, first=points[0][1] if points else None, last=points[-1][1] if points else None)

    def points(self, metric: str) -> list[Point]:
        """Return a metric over the steps; none if there is no such metric."""
        with self._lock:
            if metric == EVALUATION:
                return self._evaluations.points()
            total = metric.removeprefix(RATE)
            if total == metric:
                return self._curves.points(metric)
            clock = FLEET_CLOCK if total in _OF_FLEET and FLEET_CLOCK in self._curves.names() else "wall_s"
            return self._curves.rate(total, clock)

    def steps(self, first: int, last: int) -> list[StepTimes]:
        """Return the times of some steps; both ends belong to them."""
        with self._lock:
            return [each for each in self._all_steps() if first <= each.step <= last]

    def events(self, start: float, end: float) -> list[Event]:
        """Return what happened between two times."""
        with self._lock:
            return [event for event in self._happened if start <= event.time <= end]

    def _all_steps(self) -> Iterator[StepTimes]:
        columns = iter(self._times)
        while row := tuple(islice(columns, _COLUMNS)):
            step, start, wait_s, turn_s, train_s, sync_s, other_s, eval_s = row
            yield StepTimes(
                step=int(step),
                start=start,
                wait_s=wait_s,
                turn_s=turn_s,
                train_s=train_s,
                sync_s=sync_s,
                other_s=other_s,
                eval_s=eval_s,
            )

    def _step(self, record: Record) -> None:
        step = record.get("step")
        if not isinstance(step, int) or not 0 <= step < 1 << 53:
            return
        self.last_step = step
        plain = ((name, value) for name, value in numbers(record) if name not in ("step", "time", EVALUATION))
        self._curves.add(step, plain)
        times = StepTimes.of(record)
        if times is not None:
            parts = (times.wait_s, times.turn_s, times.train_s, times.sync_s, times.other_s, times.eval_s)
            self._times.extend((step, times.start, *parts))
            if len(self._times) > 2 * _COLUMNS * MAX_STEPS:
                del self._times[: _COLUMNS * MAX_STEPS]

    def _event(self, record: Record) -> None:
        kind, known = str(record.get("kind", ""))[:100], dict(numbers(record))
        if "time" not in known:
            return
        at = known["time"]
        if kind == RUN_STARTED:
            self._ended = ""
            self.started = self.started if self.started else at
            backends = (record.get("train_backend"), record.get("infer_backend"))
            self.backends = " · ".join(str(name)[:60] for name in backends if name)
        if kind == EVALUATED and {"version", "reward"} <= set(known):
            self._evaluations.add(int(known["version"]), known["reward"])
        if kind == RUN_ENDED:
            self._ended = str(record.get("status", "ended"))[:40]
        if kind not in _EVERY_STEP:
            shown = " · ".join(f"{k}: {_plain(v)}" for k, v in record.items() if k not in ("kind", "time"))
            self._happened.append(Event(time=at, kind=kind, text=shown[:_MAX_TEXT], error="error" in record))

    def _forget_metrics(self) -> None:
        self._curves, self.last_step, self._times = Curves(), 0, array("d")

    def _forget_events(self) -> None:
        self._happened: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._evaluations = Series()
        self._ended = ""
        self.started = 0.0
        self.backends = ""


class States:
    """The runs that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, RunState] = OrderedDict()

    def of(self, run: Run) -> RunState:
        """Return a run's state, up to date."""
        with self._lock:
            state = self._open.setdefault(run.id, RunState(run))
            self._open.move_to_end(run.id)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        state.refresh()
        return state


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)[:_MAX_TEXT]


def span_of(steps: Sequence[StepTimes]) -> tuple[float, float]:
    """Return when the first of some steps began and the last ended; (0, 0) without one."""
    return (min(each.start for each in steps), max(each.end for each in steps)) if steps else (0.0, 0.0)
