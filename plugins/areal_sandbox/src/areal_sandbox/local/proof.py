"""That limits hold on this machine: small programs that exceed one each, tried before a run starts.

None of them can do harm where a limit does not hold: they ask for a little more than they may, once.

Knows: what is asked for, and how it has to end.
Does not know: what holds a limit.
"""

from __future__ import annotations

from areal_agentic.sandbox import Ending, Limits, Sandbox, SandboxError

SMALL = Limits(timeout_s=10.0, memory_mb=64, processes=8, disk_mb=4)
"""Of the sandbox that is tried."""
_MANY = 2 * SMALL.processes
_PROCESSES = f"n=0; while [ $n -lt {_MANY} ]; do sleep 9 & n=$((n + 1)); done; echo all"
_MEMORY = f"import time; hold = b'x' * ({SMALL.memory_mb + SMALL.memory_mb // 2} << 20); time.sleep(9); print('all')"
_FIX = "use a newer kernel, allow control groups to this process (systemd-run --scope), or choose docker or podman"


async def prove(sandbox: Sandbox) -> None:
    """Try the interpreter and the limits of a sandbox that has `SMALL` ones.

    Raises:
        SandboxError: there is no Python, or a limit does not hold.
    """
    ran = await sandbox.run(["python3", "-c", ""])
    if not ran.ok:
        raise SandboxError("no Python in sandboxes of the provider local", why=ran.stderr.strip() or ran.ending.value,
                           fix="name an interpreter with the option `python`")  # fmt: skip
    if (await sandbox.run(["sh", "-c", _PROCESSES])).stdout:
        raise _unheld(f"processes: {_MANY} could be started where {SMALL.processes} may be")
    if (await sandbox.run(["python3", "-c", _MEMORY])).ending != Ending.MEMORY:
        raise _unheld(f"memory: {SMALL.memory_mb} MiB could be exceeded")


def _unheld(why: str) -> SandboxError:
    return SandboxError("sandboxes of the provider local do not hold their limits here", why=why, fix=_FIX)
