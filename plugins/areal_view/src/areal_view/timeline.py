"""Who did what when: controller, trainer and replicas side by side, and who waited for whom.

Knows: which part of a run is busy in each part of a step, and which replica generated which episode.
Does not know: how it is drawn (`charts`) or written for Perfetto (`trace`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from areal_core.contract.errors import StorageError
from areal_episodes.spread import Spread
from areal_view.state import Event, RunState, StepTimes, span_of

CONTROLLER, TRAINER = "controller", "trainer"
BINS = 160
"""Parts of the time shown in which a replica's load is averaged."""
MAX_SHOWN = 120
"""Steps in one picture at most: more cannot be told apart."""


@frozen(kw_only=True)
class Span:
    """What one part of the run did for a while. `share` of its load: 1 for all it ever carried.

    Example: Span(lane="trainer", doing="trains", start=1.7e9, end=1.7e9 + 1, text="step 7", share=1.0)
    """

    lane: str
    doing: str
    start: float
    end: float
    text: str
    share: float = 1.0


@frozen(kw_only=True)
class Timeline:
    """A part of a run's time."""

    start: float
    end: float
    steps: tuple[int, int]
    lanes: Sequence[str]
    spans: Sequence[Span]
    events: Sequence[Event]
    shares: Mapping[str, float]
    """Share of the time by what the step was doing; and how much of it each replica generated."""


def of_step(step: StepTimes) -> Iterator[Span]:
    """Yield what controller and trainer did in a step; what took no time is left out."""
    at, name = step.start, f"step {step.step}"
    for lane, doing, seconds in (
        (TRAINER, "waits for episodes", step.wait_s),
        (CONTROLLER, "changes hands", step.turn_s),
        (TRAINER, "trains", step.train_s),
        (TRAINER, "updates weights", step.sync_s),
        (CONTROLLER, "other", step.other_s),
        (CONTROLLER, "evaluates", step.eval_s),
    ):
        if seconds > 0:
            yield Span(lane=lane, doing=doing, start=at, end=at + seconds, text=name)
        at += seconds


def timeline(state: RunState, first: int | None, last: int | None) -> Timeline:
    """Return the time of some steps; without them the last thirty."""
    last = state.last_step if last is None else last
    first = max(1, last - 29) if first is None else first
    steps = state.steps(first, last)[-MAX_SHOWN:]
    start, end = span_of(steps)
    done = [span for step in steps for span in of_step(step)]
    loads = _loads(state, start, end) if end > start else {}
    width = (end - start) / BINS
    most = max((load for loads_of in loads.values() for load in loads_of), default=0.0)
    for replica, loads_of in loads.items():
        for number, load in enumerate(loads_of):
            if load > 0:
                at = start + number * width
                text, share = f"{load:.3g} episodes in flight", load / most
                done.append(Span(lane=replica, doing="generates", start=at, end=at + width, text=text, share=share))
    return Timeline(
        start=start,
        end=end,
        steps=(steps[0].step, steps[-1].step) if steps else (first, last),
        lanes=(CONTROLLER, TRAINER, *loads),
        spans=done,
        events=state.events(start, end),
        shares=_shares(done, end - start),
    )


def _loads(state: RunState, start: float, end: float) -> Mapping[str, Sequence[float]]:
    try:
        with Spread(state.run.folder) as spread:
            return {name or "replica ?": loads for name, loads in spread.busy(start, end, bins=BINS).items()}
    except StorageError:  # a run without a store: its trainer is shown all the same
        return {}


def _shares(spans: Sequence[Span], seconds: float) -> dict[str, float]:
    shares: dict[str, float] = {}
    for span in spans:
        name = f"{span.lane} generates" if span.doing == "generates" else span.doing
        shares[name] = shares.get(name, 0.0) + (span.end - span.start) / seconds
    return shares
