"""When to stop asking a replica that keeps failing, and when to try it again.

Knows: incidents in a row, a clock.
Does not know: replicas, requests or errors.
"""

from __future__ import annotations

from enum import StrEnum

from areal_core.contract.clock import Clock


class BreakerState(StrEnum):
    """Where a circuit breaker is."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One trial request is under way; its outcome decides."""


class Breaker:
    """A circuit breaker: opens after `threshold` incidents in a row, lets one trial through after `cooldown_s`.

    Requests that were under way together and fail together are one incident: a failure counts
    only when its request began after the last failure was counted.
    """

    def __init__(self, *, threshold: int, cooldown_s: float, clock: Clock) -> None:
        """Start closed."""
        self._threshold = threshold
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._incidents = 0
        self._began = 0
        self._counted_at = 0
        self._opened_at: float | None = None
        self._trial: int | None = None

    @property
    def state(self) -> BreakerState:
        """Return the state as a request that came now would find it."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._trial is None else BreakerState.HALF_OPEN

    @property
    def reopens_at(self) -> float:
        """Return from when on an open breaker lets a trial through."""
        return (self._opened_at or 0.0) + self._cooldown_s

    @property
    def allows(self) -> bool:
        """Return whether a request may begin now."""
        return self._opened_at is None or (self._trial is None and self._clock.now() >= self.reopens_at)

    def begin(self) -> int:
        """Count a request in; returns the ticket to give back with its outcome."""
        self._began += 1
        if self._opened_at is not None:
            self._trial = self._began
        return self._began

    def success(self, ticket: int) -> None:
        """Record that a request was answered; closes the breaker if it was the trial."""
        if self._opened_at is None or ticket == self._trial:
            self._incidents = 0
            self._opened_at = self._trial = None

    def failure(self, ticket: int) -> None:
        """Record that a request failed; opens the breaker at the threshold, or again after a failed trial."""
        if ticket <= self._counted_at:
            return
        self._counted_at = self._began
        self._incidents += 1
        if ticket == self._trial or (self._opened_at is None and self._incidents >= self._threshold):
            self._opened_at = self._clock.now()
            self._trial = None

    def cancelled(self, ticket: int) -> None:
        """Record that a request was given up by its caller, which says nothing about the replica."""
        if ticket == self._trial:
            self._trial = None
