"""One command from its start to its end, with all it started: watched, timed, its last words kept.

Knows: the watchdog that ends a command's whole family with it, also where this process is killed.
Does not know: what the command is for (`command`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

import areal_core

_WATCHDOG = Path(areal_core.__file__).parent / "worker" / "watchdog.py"
"""Run as a file, so that it needs nothing but an interpreter."""
_KEPT_BYTES = 4096


@frozen(kw_only=True)
class Ended:
    """How a command ended.

    Example: Ended(code=1, said="Traceback ...")
    """

    code: int | None
    """128 + n if signal n ended it, None if it was killed because its time was over."""
    said: str
    """The end of what it wrote, to either output."""


async def run_command(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, timeout_s: float
) -> Ended:
    """Run a command and return how it ended; by then everything it started is gone, also if the caller is cancelled.

    Its standard input is empty; its whole environment is `environment`.
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
    said = bytearray()
    reading = asyncio.create_task(_listen(process, said))
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(reading)
        return Ended(code=await process.wait(), said=said.decode(errors="replace"))
    except TimeoutError:
        return Ended(code=None, said=said.decode(errors="replace"))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await reading
        await process.wait()


async def _listen(process: asyncio.subprocess.Process, said: bytearray) -> None:
    """Keep the end of what is written, until whoever could write is gone."""
    assert process.stdout is not None
    while part := await process.stdout.read(65_536):
        said += part
        del said[:-_KEPT_BYTES]
