"""Where code nobody vouches for runs: the protocols of the role `sandbox`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from attrs import field, frozen, validators

from areal_core.contract.errors import ArealError


class SandboxError(ArealError, code="E800"):
    """A sandbox cannot be had here, or failed itself; what runs in one is never an error."""


@frozen(kw_only=True)
class Limits:
    """What one sandbox may use.

    Example: Limits(timeout_s=5.0, memory_mb=256, processes=32)
    """

    timeout_s: float = field(default=10.0, validator=validators.gt(0.0))
    """One command, from start to end; then everything it started is killed."""
    memory_mb: int = field(default=512, validator=validators.ge(16))
    """All processes of the sandbox together, in MiB."""
    processes: int = field(default=64, validator=validators.ge(1))
    """Processes and threads at once."""
    output_bytes: int = field(default=65_536, validator=validators.ge(1))
    """Of standard output and of standard error each; the rest is thrown away, the end says so."""
    disk_mb: int = field(default=64, validator=validators.ge(1))
    """What may be written in the sandbox, in MiB."""
    network: bool = False
    """Whether the network can be reached."""


class Ending(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    """By itself, with whatever exit code."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """Killed, since the sandbox took more memory than it may."""
    KILLED = "killed"
    """By a signal that neither limit explains."""


@frozen(kw_only=True)
class Ran:
    """What became of one command.

    Example: Ran(ending=Ending.EXITED, exit_code=0, stdout="42\\n", stderr="", seconds=0.04)
    """

    ending: Ending
    exit_code: int | None
    """None unless it exited."""
    stdout: str
    """Decoded as UTF-8, what is none replaced."""
    stderr: str
    truncated: bool = False
    """Some output was thrown away."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.ending == Ending.EXITED and self.exit_code == 0


@runtime_checkable
class Sandbox(Protocol):
    """One place with a file system of its own. Commands run one at a time; files stay until it is closed."""

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command in the sandbox's working folder; nothing that it started is left afterwards.

        `environment` is all that the command sees beside PATH, HOME and LANG. `timeout_s` can only shorten the limit.
        If the caller is cancelled, the command is killed first.

        Raises:
            SandboxError: the sandbox itself failed, or was closed. What the command does is never an error.
        """

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, relative to the working folder, its folders made. Raises SandboxError: it leaves the folder."""

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a file's first bytes. Raises SandboxError: there is no such file, or it leaves the folder."""

    async def close(self) -> None:
        """Kill and remove everything. Idempotent; also where a command is running."""


@runtime_checkable
class SandboxProvider(Protocol):
    """Role `sandbox`, contract 1.0: makes sandboxes. Built by its factory as factory(config), once per process."""

    def check(self) -> None:
        """Tell, before a run starts, whether sandboxes can be had here.

        Raises:
            SandboxError: what is missing, and the command that brings it.
        """

    async def open(self, limits: Limits, *, image: str = "") -> Sandbox:
        """Return a new, empty sandbox. `image` names a container image, for providers that have them.

        Raises:
            SandboxError: none can be had; `image` is given and this provider has none.
        """

    async def close(self) -> None:
        """Close every sandbox that is open. Idempotent."""
