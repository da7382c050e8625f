"""Sandboxes for adapters: they run nothing, and tell what they would have run, and within which limits.

Knows: the protocol of sandboxes.
Does not know: tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from areal_agentic.sandbox import Ending, Limits, Ran


@define
class TellingSandboxes:
    """Role `sandbox`."""

    open_now: list[TellingSandbox] = field(factory=list)

    def check(self) -> None:
        """Find nothing wrong."""

    async def open(self, limits: Limits, *, image: str = "") -> TellingSandbox:
        """Return one that tells these limits, after others had a turn."""
        await asyncio.sleep(0)
        told = f"{limits.memory_mb} MiB, {limits.timeout_s:g} s, {image}, {len(self.open_now)} others open"
        made = TellingSandbox(told, self.open_now.remove)
        self.open_now.append(made)
        return made

    async def close(self) -> None:
        """Close nothing."""


@define(eq=False)
class TellingSandbox:
    """Prints a program and the limits that it has."""

    limits: str
    closed: Callable[[TellingSandbox], None]
    files: dict[str, bytes] = field(factory=dict)

    async def run(self, command: Sequence[str], **_: Any) -> Ran:
        """Print the file that a command ends with. Any: as the protocol has it."""
        told = f"{self.files[command[-1]].decode()} in {self.limits}"
        return Ran(ending=Ending.EXITED, exit_code=0, stdout=told, stderr="")

    async def write(self, path: str, data: bytes) -> None:
        """Keep a file, and let others have a turn before it is run."""
        self.files[path] = data
        await asyncio.sleep(0)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a file."""
        return self.files[path][:max_bytes]

    async def close(self) -> None:
        """Be open no more."""
        self.closed(self)
