"""What is written about one step, and what adds up over a run.

Knows: the keys of `metrics.jsonl`.
Does not know: who reads them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
from attrs import frozen

from areal_core.algorithms.sums import means
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.turns import Stage
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.learner import Learns, Update
from areal_core.rollout.groups import EpisodeGroup, episode_reward
from areal_core.rollout.stats import RolloutStats


@frozen(kw_only=True)
class Totals:
    """Sums over a run, carried across resume; start-up and the first evaluation are in none of them.

    `tokens_trained` are generated tokens the loss was taken over, not prompts. The fleet was last read after
    `infer_wall_s` of the `seconds`; `tokens_generated` and `infer_busy_s` are of that time.
    """

    seconds: float = 0.0
    episodes_trained: int = 0
    tokens_trained: int = 0
    tokens_generated: int = 0
    weight_updates: int = 0
    max_staleness_seen: int = 0
    train_busy_s: float = 0.0
    infer_busy_s: float = 0.0
    infer_wall_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return plain numbers, as a checkpoint holds them."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, numbers: Mapping[str, float]) -> Totals:
        """Undo `as_dict`; an empty mapping is the start of a run."""
        whole = {field.name for field in attrs.fields(cls) if field.type == "int"}
        return cls(**{name: int(value) if name in whole else value for name, value in numbers.items()})  # type: ignore[arg-type]


class Count:
    """Adds up a run. What was done before it was made (start-up, the first evaluation) is left out."""

    def __init__(
        self, base: Totals, learner: Learns, meter: FleetMeter, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Go on from `base`, the totals of a resumed run, or from nothing."""
        self._sums = base
        self._learner, self._meter, self._now = learner, meter, now
        self._before = self._measured()

    def add(self, groups: Sequence[EpisodeGroup], update: Update) -> None:
        """Count one step."""
        self._sums = attrs.evolve(
            self._sums,
            episodes_trained=self._sums.episodes_trained + sum(len(group.episodes) for group in groups),
            tokens_trained=self._sums.tokens_trained + int(update.batch.tokens["loss_mask"].sum()),
            weight_updates=self._sums.weight_updates + 1,
            max_staleness_seen=max([self._sums.max_staleness_seen, *staleness_of(groups)]),
        )

    def totals(self) -> Totals:
        """Return the sums up to now."""
        seconds, generated, train_busy_s, infer_busy_s, infer_wall_s = (
            now - before for now, before in zip(self._measured(), self._before, strict=True)
        )
        return attrs.evolve(
            self._sums,
            seconds=self._sums.seconds + seconds,
            tokens_generated=self._sums.tokens_generated + int(generated),
            train_busy_s=self._sums.train_busy_s + train_busy_s,
            infer_busy_s=self._sums.infer_busy_s + infer_busy_s,
            infer_wall_s=self._sums.infer_wall_s + infer_wall_s,
        )

    def _measured(self) -> tuple[float, float, float, float, float]:
        meter = self._meter
        return self._now(), meter.tokens_generated, self._learner.actor.busy_s, meter.busy_s, meter.read_at


PARTS = {"wait_s": "rollouts", "train_s": "the trainer", "sync_s": "the weight update", "eval_s": "the evaluation"}
"""Parts of a step, and who is waited for in each."""


class StepTimes:
    """Seconds a step spent in each of its parts; `waiting` is told who is waited for."""

    def __init__(self, waiting: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._started, self._waiting = time.monotonic(), waiting

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time inside the block to one part."""
        started = time.monotonic()
        self._waiting(PARTS[part])
        try:
            yield
        finally:
            self.seconds[part] += time.monotonic() - started

    @property
    def total(self) -> float:
        """Return seconds since the step began, evaluation left out."""
        return time.monotonic() - self._started - self.seconds["eval_s"]


def staleness_of(groups: Sequence[EpisodeGroup]) -> list[int]:
    """Return, per episode, how many versions its oldest token lagged when it was handed over."""
    return [lag for group in groups for lag in group.staleness]


def step_record(
    version: int,
    groups: Sequence[EpisodeGroup],
    update: Update,
    weights: WeightUpdate,
    times: StepTimes,
    totals: Totals,
    rollout: RolloutStats,
    fleet: Mapping[str, float],
) -> dict[str, object]:
    """Return one line of `metrics.jsonl`: the step that made `version`. `fleet` is `FleetMeter.metrics`."""
    episodes = [episode for group in groups for episode in group.episodes]
    staleness = staleness_of(groups)
    rewards = [episode_reward(episode) for episode in episodes]
    taken = [report for report in update.reports if report.stepped] or update.reports
    norms = [report.grad_norm for report in taken]
    return {
        "time": time.time(),
        "step": version,
        "version": version,
        "seconds": times.total,
        "wall_s": totals.seconds,
        "reward": sum(rewards) / max(1, len(rewards)),
        "loss": sum(report.loss for report in taken) / len(taken),
        "grad_norm": sum(norms) / len(norms),
        "grad_norm_max": max(norms),
        "lr": update.reports[-1].lr,
        "stepped": all(report.stepped for report in update.reports),
        "skipped_steps": sum(not report.stepped for report in update.reports),
        "episodes": len(episodes),
        "tokens": update.batch.num_tokens,
        "tokens_trained": totals.tokens_trained,
        "tokens_generated": totals.tokens_generated,
        "train_busy_s": totals.train_busy_s,
        "infer_busy_s": totals.infer_busy_s,
        "infer_wall_s": totals.infer_wall_s,
        "staleness_mean": sum(staleness) / max(1, len(staleness)),
        "staleness_max": max(staleness, default=0),
        "staleness_histogram": {str(lag): count for lag, count in sorted(Counter(staleness).items())},
        "in_flight": rollout.running,
        "buffered": rollout.buffered,
        "failed": rollout.failed,
        "dropped": rollout.dropped,
        "rejected": rollout.rejected,
        "filtered": rollout.filtered,
        "sync_bytes": weights.num_bytes,
        "sync_unchanged": weights.unchanged,
        "weights": weights.fingerprint,
        "sync_tensors": weights.num_tensors,
        **_parts(times, weights),
        **{f"turn/{stage}_s": seconds for stage, seconds in weights.turns.items()},
        **{f"sync/{phase}_s": seconds for phase, seconds in weights.phases.items()},
        **{f"infer/{name}": value for name, value in fleet.items()},
        **{f"train/{name}": value for name, value in means(update.metrics).items()},
    }


def _parts(times: StepTimes, weights: WeightUpdate) -> dict[str, float]:
    """Return the parts of a step; half of a change of hands lies within the update and is taken out of it."""
    if not weights.turns:
        return times.seconds
    within = sum(weights.turns.get(stage, 0.0) for stage in (Stage.OFFLOAD, Stage.WAKE))
    return {
        **times.seconds,
        "sync_s": max(0.0, times.seconds["sync_s"] - within),
        "turn_s": sum(weights.turns.values()),
    }
