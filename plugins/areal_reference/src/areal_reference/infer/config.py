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
    """

    deterministic: bool = False
    """The same bits for a request whatever else runs, for about four times the time per step."""
    kv_on_update: CacheOnUpdate = field(default=CacheOnUpdate.KEEP, converter=CacheOnUpdate)
    """What happens to the keys and values of running requests when the weights change."""
    cache_gib: float = field(default=4.0, validator=validators.gt(0.0))
    """Memory for keys and values: a request that could outgrow it waits."""
    prefill_tokens: int = field(default=8192, validator=validators.ge(1))
    """Prompt tokens taken into one step at most."""
