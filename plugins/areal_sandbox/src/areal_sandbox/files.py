"""Files of a sandbox, read and written by commands in it: what a policy left there is never opened from outside.

Knows: how to stay in the working folder, whatever links and pipes lie there.
Does not know: which provider runs the commands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

from areal_agentic.sandbox import Ending, SandboxError
from areal_sandbox.execution import Outcome

Execute = Callable[[list[str], bytes, int], Awaitable[Outcome]]
"""Runs a command with standard input, keeping so many bytes of its output."""

_LEAVES = 3
_READ = f"""\
file=$(readlink -f -- "$1") || exit 1
case "$file" in "$(pwd -P)"/*) ;; *) exit {_LEAVES} ;; esac
[ -f "$file" ] && exec head -c "$2" "$file"
"""
_WRITE = f"""\
folder=$(dirname -- "$1") && mkdir -p -- "$folder" || exit 1
case "$(cd -- "$folder" && pwd -P)/" in "$(pwd -P)"/*) ;; *) exit {_LEAVES} ;; esac
rm -f -- "$1" && exec cat > "$1"
"""


async def read_file(execute: Execute, path: str, max_bytes: int) -> bytes:
    """Return a file's first bytes.

    Raises:
        SandboxError: it leaves the folder, or is no file.
    """
    outcome = await execute(["sh", "-c", _READ, "sh", _relative(path), str(max_bytes)], b"", max_bytes)
    if outcome.code != 0 or outcome.stopped is not None:
        raise _failed(f"{path!r} of the sandbox cannot be read", outcome, "there is no such file")
    return outcome.stdout


async def write_file(execute: Execute, path: str, data: bytes) -> None:
    """Write a file, in place of what is there.

    Raises:
        SandboxError: it leaves the folder, or there is no room for it.
    """
    outcome = await execute(["sh", "-c", _WRITE, "sh", _relative(path)], data, 1024)
    if outcome.code != 0 or outcome.stopped is not None:
        raise _failed(f"{path!r} of the sandbox cannot be written", outcome, "there is no room for it")


def _relative(path: str) -> str:
    """Return a path below the working folder, such that no command takes it for an option."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath() or "\0" in path:
        raise SandboxError(f"{path!r} is no file of the sandbox", why="it leaves the working folder",
                           fix="give a path relative to it")  # fmt: skip
    return f"./{pure}"


def _failed(what: str, outcome: Outcome, otherwise: str) -> SandboxError:
    if outcome.stopped == Ending.TIMEOUT:
        return SandboxError(what, why="it took longer than a command may")
    if outcome.code == _LEAVES:
        return SandboxError(what, why="a link leads out of the working folder")
    return SandboxError(what, why=outcome.stderr.decode(errors="replace").strip() or otherwise)
