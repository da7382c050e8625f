"""Optional abilities: each a small protocol, a claim in the manifest and a group of checks.

An engine that does not claim an ability does not have the method at all; the plan
refuses a run that needs it, naming the backends that can.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsOffload(Protocol):
    """Claim `memory.offload`: a train engine can give its device memory back between steps."""

    def offload(self) -> None:
        """Move weights and optimizer off the device. Idempotent."""

    def onload(self) -> None:
        """Bring them back. Idempotent; called before the next use."""


@runtime_checkable
class SupportsSleep(Protocol):
    """Claim `memory.sleep`: an inference engine can give its device memory back."""

    async def sleep(self) -> None:
        """Free weights and cache. Only when paused. Idempotent."""

    async def wake(self) -> None:
        """Take the memory again; weights must be received before generating."""


@runtime_checkable
class SupportsScoring(Protocol):
    """Claim `scoring`: an inference engine can tell the log-probs of given tokens."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return log p(token t | tokens < t) for each token, 0.0 for the first."""


@runtime_checkable
class SupportsAdapters(Protocol):
    """Claim `lora.adapters`: an inference engine can serve adapters over fixed base weights."""

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it."""

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
