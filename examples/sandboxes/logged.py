"""A provider of sandboxes in one file: those of `local`, and a line on standard error for each command.

    areal train run.yaml imports=[examples/sandboxes/logged.py] rollout.reward.options.sandbox=logged

docs/contract/sandbox.md explains it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence

from areal_agentic.sandbox import Limits, Ran, Sandbox
from areal_core import backend
from areal_core.plugins.manifest import Manifest
from areal_sandbox.local.provider import LocalProvider

MANIFEST = Manifest(
    role="sandbox", name="logged", contract=(1, 0), factory="logged:LoggedProvider", summary="local, and a log"
)


class Logged:
    """A sandbox that tells what runs in it."""

    def __init__(self, inside: Sandbox) -> None:
        self._inside = inside
        self.write, self.read, self.close = inside.write, inside.read, inside.close

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command, and say how it ended."""
        ran = await self._inside.run(command, stdin=stdin, environment=environment or {}, timeout_s=timeout_s)
        sys.stderr.write(f"{shlex.join(command)[:60]}: {ran.ending} after {ran.seconds:.2f} s\n")
        return ran


@backend(MANIFEST)
class LoggedProvider:
    """Makes sandboxes as `local` does."""

    def __init__(self) -> None:
        self._local = LocalProvider()
        self.check, self.close = self._local.check, self._local.close

    async def open(self, limits: Limits, *, image: str = "") -> Sandbox:
        """Return a new, empty sandbox."""
        return Logged(await self._local.open(limits, image=image))
