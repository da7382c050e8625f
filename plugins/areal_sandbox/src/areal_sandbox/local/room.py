"""What a sandbox keeps between its commands: files in memory, in namespaces of their own, held by one process.

    sh                 stays outside; removes the sandbox's control groups when the room is gone
      unshare
        cat            first process of the room's namespaces; ends when standard input does, and all in them with it

Standard input is a pipe whose other end this process holds: however it ends, the room ends, and nothing is left. Root
lays out the room and becomes nobody before the first command: whatever is left to the owner of a file or of a setting
of the kernel is then left to no command.

Knows: how a room is made, entered and ended.
Does not know: what a command sees of it (`view`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from areal_agentic.sandbox import Limits, SandboxError
from areal_sandbox.execution import kill_group
from areal_sandbox.local.groups import Group, joining

TOP = "/sys"
"""Where the room's files are mounted, for those in its namespaces: a folder no command ever sees."""
WORK, USER, HOST = "/sandbox", "1000", "sandbox"
"""What commands see: their working folder, their user, the name of the machine."""
_NOBODY = "65534"

_OUTSIDE = """\
trap '' INT TERM HUP
eval "$1"
shift
for group do
  tries=0
  until rmdir "$group" 2>/dev/null || [ ! -e "$group" ] || [ $tries -ge 100 ]; do tries=$((tries + 1)); sleep 0.05; done
done
"""
_LAID_OUT = f"""\
mount -t tmpfs -o size=%dm,nr_inodes=%d,mode=755,nosuid,nodev tmpfs {TOP} && cd {TOP} &&
mkdir work tmp shm etc shown && echo "user:x:{USER}:{USER}::{WORK}:/bin/sh" > etc/passwd &&
echo "user:x:{USER}:" > etc/group && echo "127.0.0.1 localhost {HOST}" > etc/hosts"""
_HELD = """\
read -r pid rest < /proc/self/stat && mount -t proc proc /proc && echo "$pid" && exec env --ignore-signal=CHLD cat"""
"""The id is read while /proc is still that of this process's world. Ignoring SIGCHLD reaps what nobody waits for."""
_UNSHARE = "unshare --user --map-root-user --mount --pid --fork --kill-child sh -c"
_OPENED = f'chmod 1777 {TOP}/work {TOP}/tmp {TOP}/shm && exec "$@"'

_START_S = 30.0
_END_S = 10.0


@frozen(eq=False)
class Room:
    """Held by a process that is the first one of its namespaces; `pid` is its id here."""

    limits: Limits
    group: Group | None
    pid: int
    _process: asyncio.subprocess.Process = field(alias="process")

    @classmethod
    async def make(cls, limits: Limits, group: Group | None, shown: Sequence[str] = ()) -> Room:
        """Make a room and wait until it is there. `shown` are files and folders it has at `place(number)`.

        Raises:
            SandboxError: the kernel refuses.
        """
        folders = () if group is None else tuple(map(str, group.folders))
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", _OUTSIDE, "sh", _script(limits, shown), *folders),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, env=outside(),
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        try:
            async with asyncio.timeout(_START_S):
                pid = (await process.stdout.readline()).decode().strip()
                why = "" if pid else (await process.stderr.read()).decode(errors="replace").strip()
        except BaseException as error:
            await _end(process)
            if isinstance(error, TimeoutError):
                raise SandboxError("a sandbox did not start", why=f"nothing happened for {_START_S:g} s") from None
            raise
        if not pid:
            await _end(process)
            raise SandboxError("a sandbox did not start", why=why or "unshare ended without a word",
                               fix="areal doctor tells whether sandboxes can be had here")  # fmt: skip
        return cls(limits=limits, group=group, pid=int(pid), process=process)

    @property
    def alive(self) -> bool:
        """Whether the process that holds it is there."""
        return self._process.returncode is None

    def enter(self) -> list[str]:
        """Return the command line that runs what is appended to it in the room and its control groups.

        A command before may have taken the right to enter its folders from itself; it is given back.
        """
        enter = ["nsenter", "--target", str(self.pid), "--user", "--mount", "--pid", "--preserve-credentials", "--"]
        command = [*_as_nobody(), *enter, "sh", "-c", _OPENED, "sh"]
        return command if self.group is None else ["sh", "-c", joining(self.group) + 'exec "$@"', "sh", *command]

    async def empty(self) -> bool:
        """Have nothing run in the room but what holds it; return False if that takes too long.

        What lost its parent there is a child of the first process. It is killed: a bubblewrap whose parent ended before
        it could ask to end with it, as one that is cancelled at its start, would go on.
        """
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        deadline = asyncio.get_running_loop().time() + _END_S
        while left := _text(children).split():
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def end(self) -> None:
        """End the room, with its files and whatever still runs in it, and its control groups. Idempotent."""
        await _end(self._process)


def outside() -> Mapping[str, str]:
    """Return the variables of the processes around a command, which it can read in /proc: none of this process's."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}


def place(number: int) -> str:
    """Return where the room has one of the files and folders that are shown in it."""
    return f"{TOP}/shown/{number}"


def _script(limits: Limits, shown: Sequence[str]) -> str:
    """Return the shell text that makes a room and holds it until standard input ends."""
    lines = [_LAID_OUT % (limits.disk_mb, limits.disk_mb * 128 + 1024)]
    for number, path in enumerate(shown):
        made = f"mkdir {place(number)}" if Path(path).is_dir() else f": > {place(number)}"
        lines.append(f"{made} && mount --rbind {shlex.quote(path)} {place(number)}")
    laid_out = " &&\n".join(lines)
    if not _as_nobody():
        return f"{_UNSHARE} {shlex.quote(f'{laid_out} && {_HELD}')}"
    owned = f"chown {_NOBODY}:{_NOBODY} work tmp shm"
    inner = f"exec {shlex.join(_as_nobody())} {_UNSHARE} {shlex.quote(_HELD)}"
    return f"unshare --mount sh -c {shlex.quote(f'{laid_out} && {owned} && {inner}')}"


def _as_nobody() -> list[str]:
    """Return the command line that gives up root; empty where there is none to give up."""
    return [] if os.geteuid() else ["setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups"]


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        kill_group(process.pid)
        await process.wait()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
