"""Settings of the reference generator, as written under `rollout.options`.

Knows: names, ranges and what each setting costs.
Does not know: torch, or what a request asks for (`SamplingParams`).
"""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen, validators


class CacheOnUpdate(StrEnum):
    """What happens to the keys and values of running requests when the weights change."""

    KEEP = "keep"
    """Go on with the entries the old weights made: no pause, a small mismatch."""
    RECOMPUTE = "recompute"
    """Make them again under the new weights before the next token: one prefill of everything running."""


@frozen(kw_only=True)
class ReferenceInferenceConfig:
    """How the generator trades speed, memory and exactness.

    Example: ReferenceInferenceConfig(deterministic=True)

    `deterministic` makes tokens and log-probs of a request the same bits whatever else runs,
    for about four times the time per step. `cache_gib` bounds the key-value cache: a request that
    could outgrow it waits. `prefill_tokens` bounds the prompt tokens taken into one step.
    """

    deterministic: bool = False
    kv_on_update: CacheOnUpdate = field(default=CacheOnUpdate.KEEP, converter=CacheOnUpdate)
    cache_gib: float = field(default=4.0, validator=validators.gt(0.0))
    prefill_tokens: int = field(default=8192, validator=validators.ge(1))
