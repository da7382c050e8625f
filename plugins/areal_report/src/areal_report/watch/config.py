"""What stands under `guard:`: which of the warnings end a run, and when they are given.

Knows: names, thresholds, defaults.
Does not know: how a step is judged.
"""

from __future__ import annotations

from attrs import field, frozen, validators

_COUNT = validators.ge(0)
_ABOVE = validators.ge(0.0)


@frozen(kw_only=True)
class Thresholds:
    """One number per warning; 0 turns it off. Counts are steps in a row."""

    no_reward_signal: int = field(default=0, validator=_COUNT)
    """Steps in a row in which every advantage was 0."""
    weights_unchanged: int = field(default=0, validator=_COUNT)
    """Steps in a row after which the fleet got the bytes that it had."""
    all_truncated: int = field(default=0, validator=_COUNT)
    """Steps in a row in which no answer came to an end."""
    entropy_below: float = field(default=0.0, validator=_ABOVE)
    """Mean entropy of a token, in nats."""
    clip_share_above: float = field(default=0.0, validator=[_ABOVE, validators.lt(1.0)])
    """Share of tokens whose ratio is clipped."""
    engine_gap_above: float = field(default=0.0, validator=_ABOVE)
    """Mean difference of log-probs between trainer and inference engine under equal weights, in nats."""
    engine_gap_growth: float = field(default=0.0, validator=_ABOVE)
    """That difference, over its last ten steps, divided by that over its first ten; from 0.02 nats on."""

    restarts_above: float = field(default=0.0, validator=[_ABOVE, validators.lt(1.0)])
    """Share of agents' requests that begin a conversation anew instead of going on from its tokens."""


WARN = Thresholds(
    no_reward_signal=5,
    weights_unchanged=3,
    all_truncated=3,
    entropy_below=0.01,
    clip_share_above=0.3,
    engine_gap_above=0.2,
    engine_gap_growth=3.0,
    restarts_above=0.1,
)
"""When a warning is given where `guard.warn` says nothing else."""


@frozen(kw_only=True)
class GuardConfig(Thresholds):
    """What ends the run: nothing, as long as nothing is set.

    Example: GuardConfig(no_reward_signal=20, entropy_below=0.01, clip_share_above=0.3)
    """

    patience: int = field(default=5, validator=validators.ge(1))
    """Steps in a row that a value must be beyond its threshold; also how long before a warning counts as over."""
    warn: Thresholds = WARN
    """When to warn; what is not named here has its default: `guard.warn.entropy_below: 0` is silent about entropy."""
