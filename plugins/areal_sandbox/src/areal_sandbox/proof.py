"""That limits hold on this machine: small programs that exceed one each, tried before a run starts.

None of them can do harm where a limit does not hold: they ask for a little more than they may, once.

Knows: what is asked for, and how it has to end.
Does not know: what holds a limit, or where the sandbox is from.
"""

from __future__ import annotations

from areal_agentic.sandbox import Ending, Limits, Sandbox, SandboxError

SMALL = Limits(timeout_s=10.0, memory_mb=64, processes=8, disk_mb=4)
"""Of the sandbox that is tried."""
_MANY = 2 * SMALL.processes
_PROCESSES = f"n=0; while [ $n -lt {_MANY} ]; do sleep 9 & n=$((n + 1)); done; echo all"
_BYTES = 3 * SMALL.memory_mb << 19
PYTHON = ("python3", "-c", f"import time; hold = b'x' * {_BYTES}; time.sleep(9)")
"""Takes half as much memory again as it may."""
SHELL = ("sh", "-c", f"hold=$(head -c {_BYTES} /dev/zero | tr '\\0' x); sleep 9")
"""Likewise, for images without Python."""


async def prove(sandbox: Sandbox, hog: tuple[str, ...], fix: str) -> None:
    """Try the limits of a sandbox that has `SMALL` ones, with one of the programs above.

    Raises:
        SandboxError: a limit does not hold.
    """
    what = "sandboxes do not hold their limits here"
    if (await sandbox.run(["sh", "-c", _PROCESSES])).stdout:
        raise SandboxError(what, why=f"processes: {_MANY} could be started where {SMALL.processes} may be", fix=fix)
    ran = await sandbox.run(hog)
    if ran.ending != Ending.MEMORY:
        why = ran.stderr.strip() or f"{SMALL.memory_mb} MiB could be exceeded"
        raise SandboxError(what, why=f"memory: {why}", fix=fix)
