"""One command from its start to its end, with all it started: watched, timed, its last words kept.

Knows: the watchdog that ends a command's whole family with it, also where this process is killed.
Does not know: what the command is for (`command`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import define, field

from areal_worker import watchdog

_WATCHDOG = Path(watchdog.__file__)
"""Run as a file, so that it needs nothing but an interpreter."""


@define
class Said:
    """The end of what a command writes, to either output, as far as it has come.

    Example: Said(max_bytes=65_536)
    """

    max_bytes: int = 4096
    _kept: bytearray = field(factory=bytearray)

    def add(self, part: bytes) -> None:
        """Hear some more."""
        self._kept += part
        del self._kept[: -self.max_bytes]

    def __str__(self) -> str:
        """Return it as text."""
        return self._kept.decode(errors="replace")


async def run_command(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, timeout_s: float, said: Said | None = None
) -> int | None:
    """Run a command until it is over; by then everything it started is gone, also if the caller is cancelled.

    Its standard input is empty; its whole environment is `environment`.

    Args:
        said: hears what it writes.

    Returns:
        Its exit code, 128 + n if signal n ended it, None if it was killed because its time was over.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_WATCHDOG), *command),
        stdin=asyncio.subprocess.PIPE,  # closes with this process: the watchdog ends the command then
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
    )
    reading = asyncio.create_task(_listen(process, Said() if said is None else said))
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(reading)
        return await process.wait()
    except TimeoutError:
        return None
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await reading
        await process.wait()


async def _listen(process: asyncio.subprocess.Process, said: Said) -> None:
    """Hear what is written, until whoever could write is gone."""
    assert process.stdout is not None
    while part := await process.stdout.read(65_536):
        said.add(part)
