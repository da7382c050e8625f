"""What rollout did so far, in numbers.

Knows: counts.
Does not know: where they are shown.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from attrs import Factory, define, frozen

from areal_core.contract.errors import EpisodeFailed
from areal_core.rollout.groups import EpisodeGroup, episode_reward

_REMEMBERED = 100
"""Failures that are remembered at most."""


@frozen(kw_only=True)
class RolloutStats:
    """A snapshot, in groups unless said otherwise.

    `admitted` = running + buffered + consumed + rejected + failed + dropped.

    Example: RolloutStats(version=3, running=40, buffered=8, admitted=96, consumed=48, ...)
    """

    version: int
    running: int
    buffered: int
    admitted: int
    consumed: int
    rejected: int
    failed: int
    dropped: int
    evaluated: int
    """Evaluation episodes."""
    tokens_generated: int
    """Of every try that ended, rejected, failed and evaluation ones too."""
    reward_sum: float
    """Over consumed episodes; each counts the mean of its trajectories."""
    episodes_consumed: int
    max_staleness_seen: int
    last_staleness: Mapping[int, int] = Factory(dict)
    """Staleness -> episodes of the last batch handed over."""
    last_lengths: Sequence[int] = ()
    """Generated tokens of each group of the last batch."""
    failures: tuple[EpisodeFailed, ...] = ()
    """The last of them."""
    filtered: int = 0
    """Of the rejected, those that `rollout.accept` left out."""


@define
class Counts:
    """The running counts behind `RolloutStats`; written by the executor alone."""

    admitted: int = 0
    consumed: int = 0
    rejected: int = 0
    filtered: int = 0
    dropped: int = 0
    evaluated: int = 0
    reward_sum: float = 0.0
    episodes_consumed: int = 0
    max_staleness_seen: int = 0
    last_staleness: dict[int, int] = Factory(dict)
    last_lengths: list[int] = Factory(list)
    failed: int = 0
    failures: deque[EpisodeFailed] = Factory(lambda: deque(maxlen=_REMEMBERED))

    def fail(self, error: EpisodeFailed) -> None:
        """Count a group that failed."""
        self.failed += 1
        self.failures.append(error)

    def hand_over(self, groups: Sequence[EpisodeGroup]) -> None:
        """Count one batch."""
        ages: Counter[int] = Counter()
        for group in groups:
            ages.update(group.staleness)
            self.reward_sum += sum(map(episode_reward, group.episodes))
        self.consumed += len(groups)
        self.episodes_consumed += ages.total()
        self.last_staleness = dict(sorted(ages.items()))
        self.last_lengths = [group.num_generated for group in groups]
        self.max_staleness_seen = max(self.max_staleness_seen, *ages) if ages else self.max_staleness_seen
