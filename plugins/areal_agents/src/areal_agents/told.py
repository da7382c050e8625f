"""What an agent says an episode is worth: the forms in which it may return it, or write it to a file.

Knows: numbers, results with parts, mappings.
Does not know: who calls the agent, or what else could judge the episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult

_FIX = 'return the reward as a number, a RewardResult, a mapping {"reward": 0.5, "form": 1.0}, or None'


def reward_told(said: object, episode: str) -> RewardResult | None:
    """Return what an agent said as a result, None if it said nothing.

    Raises:
        EpisodeFailed: it is in no form of a reward, or no finite number; names the episode.
    """
    if said is None or isinstance(said, RewardResult):
        return said
    parts: Mapping[object, object] = said if isinstance(said, Mapping) else {"reward": said}
    if "reward" not in parts:
        raise _wrong(said, episode, "a mapping needs a number under 'reward'")
    numbers: dict[str, float] = {}
    for name, part in parts.items():
        number = _finite(part)
        if number is None:
            raise _wrong(said, episode, f"{str(name)[:40]} is of type {type(part).__name__}, and no finite number")
        numbers[str(name)] = number
    return RewardResult(value=numbers.pop("reward"), components=numbers)


def _finite(part: object) -> float | None:
    try:
        number = float(part) if isinstance(part, Real) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _wrong(said: object, episode: str, why: str) -> EpisodeFailed:
    return EpisodeFailed(f"the agent returned {str(said)[:60]!r} in episode {episode}", why=why, fix=_FIX)
