"""One container as a sandbox, by the command line of docker or podman.

The container's first process waits on a pipe from here and belongs to its root, who has no rights; commands belong to
a user of this sandbox's own, whose processes the kernel counts. They can neither end the first process nor outlive it,
and the container ends when this process here does.

Knows: the arguments docker and podman share.
Does not know: which of the two it is, or what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from attrs import define, evolve, field

from areal_agentic.sandbox import Ending, Limits, Ran, SandboxError
from areal_sandbox.containers.config import ContainerConfig
from areal_sandbox.execution import STARTED, Outcome, execute, kill_group
from areal_sandbox.files import read_file, write_file

WORK = "/sandbox"
_USERS = range(20_000, 60_000)
"""A sandbox's user: of ranges that are mapped also where the container's root is nobody."""
_NOTHING: Mapping[str, str] = MappingProxyType({})
_HELD = f"chmod 1777 {WORK} /tmp; exec 3<&0; cat <&3 > /dev/null & echo $!; wait $!"
"""The shell waits for `cat`, and reaps what nobody else waits for meanwhile."""
_CLEAN = f"""\
most=$1; shift
ulimit -u "$most" 2> /dev/null || ulimit -p "$most" && printf {STARTED.decode()} &&
exec env -i PATH="$PATH" HOME={WORK} LANG=C.UTF-8 "$@\""""
"""The limit of processes is set in here: a runtime has threads of its own before. Shells name it -u or -p."""
_KILLS = f"""\
printf {STARTED.decode()}
n=0
while [ $n -lt 10000 ]; do
  n=$((n + 1)) found=
  for each in /proc/[0-9]*; do
    case "${{each#/proc/}}" in 1 | "$1" | $$) ;; *) found=1; kill -9 "${{each#/proc/}}" 2> /dev/null ;; esac
  done
  [ "$found" ] || break
done
cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2> /dev/null"""
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_OUR_PROCESSES = 32
"""What there is room for beside the command: the first processes, and the threads of a runtime that enters."""
_FILES = 1024
_FOLDER = "/proc" if Path("/proc").is_dir() else "/"
"""Where podman is called from: its monitor writes a file `oom` there when memory runs out, and in /proc it cannot."""
_TIDY_S = 30.0


def command(program: str, config: ContainerConfig) -> list[str]:
    """Return how the program is called: podman is told its runtime before anything else."""
    return [program, *(["--runtime", config.runtime] if config.runtime and program == "podman" else [])]


def arguments(program: str, limits: Limits, config: ContainerConfig, image: str, name: str) -> list[str]:
    """Return what follows to make a container and hold it until standard input ends."""
    memory = f"{limits.memory_mb + limits.disk_mb}m"
    most, files = limits.processes + _OUR_PROCESSES, min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    folder = f"rw,exec,nosuid,nodev,size={limits.disk_mb}m,mode=1777"
    return [
        *("run", "--rm", "--interactive", "--name", name, "--hostname", "sandbox"),
        *(["--runtime", config.runtime] if config.runtime and program != "podman" else []),
        *([] if limits.network else ["--network", "none"]),
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(most)),
        *("--ulimit", f"nproc={most}:{most}", "--ulimit", f"nofile={files}:{files}", "--ulimit", "core=0:0"),
        *("--tmpfs", f"{WORK}:{folder}", "--tmpfs", f"/tmp:{folder}", "--shm-size", "1m"),
        *([] if config.root else ["--read-only", "--cap-drop", "ALL"]),
        *("--security-opt", "no-new-privileges", "--user", "0:0", "--workdir", WORK),
        *("--entrypoint", "sh", image or config.image, "-c", _HELD),
    ]


@define(eq=False)
class Container:
    """A `Sandbox` of the providers `docker` and `podman`."""

    call: Sequence[str]
    name: str
    limits: Limits
    _ended: Callable[[Container], object] = field(alias="ended")
    """Told once it is closed."""
    user: str
    holder: str = field(default="", init=False)
    """What the container calls the process that holds it, beside its first."""
    _process: asyncio.subprocess.Process = field(alias="process")
    _turn: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    _kills: int = field(default=0, init=False)
    """How many processes were killed so far for want of memory."""
    _closed: bool = field(default=False, init=False)

    @classmethod
    async def make(
        cls, program: str, limits: Limits, config: ContainerConfig, image: str, ended: Callable[[Container], object]
    ) -> Container:
        """Make a container and wait until it is there.

        Raises:
            SandboxError: the command refuses; its own words are in the error.
        """
        call, name = command(program, config), f"areal-sandbox-{os.getpid()}-{secrets.token_hex(4)}"
        process = await asyncio.create_subprocess_exec(
            *call, *arguments(program, limits, config, image, name),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, cwd=_FOLDER,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        user = "0" if config.root else str(secrets.choice(_USERS))
        made = cls(call=call, name=name, limits=limits, user=user, ended=ended, process=process)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                made.holder = (await process.stdout.readline()).decode().strip()
                why = "" if made.holder else (await process.stderr.read()).decode(errors="replace").strip()
        except BaseException as error:
            await made.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"{program} made no container within {config.start_timeout_s:g} s",
                                   fix=f"{program} pull {image or config.image}") from None  # fmt: skip
            raise
        if not made.holder:
            await made.close()
            raise SandboxError(f"{program} made no container of {image or config.image}", why=why,
                               fix=f"try {program} run --rm {image or config.image} true")  # fmt: skip
        return made

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = _NOTHING,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command in the working folder, as the contract says."""
        seconds = self.limits.timeout_s if timeout_s is None else min(timeout_s, self.limits.timeout_s)
        variables = [f"{name}={value}" for name, value in environment.items()]
        return (await self._execute([*variables, *command], stdin, self.limits.output_bytes, seconds)).ran()

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, relative to the working folder."""
        await write_file(self._tended, path, data)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a file's first bytes."""
        return await read_file(self._tended, path, max_bytes)

    async def close(self) -> None:
        """End the container and whatever runs in it. Idempotent."""
        self._closed = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        removal = await asyncio.create_subprocess_exec(
            *(*self.call, "rm", "--force", self.name),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await removal.wait()
        with contextlib.suppress(TimeoutError):  # it ends when the container is gone; the removal may only have begun
            async with asyncio.timeout(_TIDY_S):
                await self._process.wait()
        kill_group(self._process.pid)
        await self._process.wait()
        self._ended(self)

    async def _tended(self, command: list[str], stdin: bytes, max_output: int) -> Outcome:
        return await self._execute(command, stdin, max_output, self.limits.timeout_s)

    async def _execute(self, command: Sequence[str], stdin: bytes, max_output: int, timeout_s: float) -> Outcome:
        async with self._turn:
            self._require_open()
            kills = self._kills
            try:
                outcome = await execute(
                    [*self._enter(), "sh", "-c", _CLEAN, "sh", str(self.limits.processes), *command],
                    stdin=stdin, max_output=max_output, timeout_s=timeout_s, folder=_FOLDER,
                )  # fmt: skip
            except SandboxError:
                self._require_open()
                raise
            finally:
                await asyncio.shield(self._tidy())
            self._require_open()
            return evolve(outcome, stopped=Ending.MEMORY) if self._kills > kills else outcome

    async def _tidy(self) -> None:
        """Kill what still runs in the container, and count; end the container if that cannot be done."""
        try:
            done = await execute(
                [*self._enter(), "sh", "-c", _KILLS, "sh", self.holder], max_output=4096, timeout_s=_TIDY_S
            )
        except SandboxError:
            await self.close()
            return
        if done.stopped is not None:
            await self.close()
        self._kills = sum(int(count) for count in _COUNT.findall(done.stdout.decode(errors="replace")))

    def _enter(self) -> list[str]:
        user = f"{self.user}:{self.user}"
        return [*self.call, "exec", "--interactive", "--user", user, "--workdir", WORK, self.name]

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed", fix="open another one")
        if self._process.returncode is not None:
            raise SandboxError("the sandbox is gone", why=f"container {self.name} ended", fix="open another one")
