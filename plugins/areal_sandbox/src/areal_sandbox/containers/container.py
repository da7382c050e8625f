"""One container as a sandbox, by the command line of docker or podman.

The container's first process waits on a pipe from here and belongs to root, commands to nobody: they can neither end
it nor outlive it, and the container ends when this process does.

Knows: the arguments docker and podman share.
Does not know: which of the two it is, or what runs.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from attrs import define, evolve, field

from areal_agentic.sandbox import Ending, Limits, Ran, SandboxError
from areal_sandbox.containers.config import ContainerConfig
from areal_sandbox.execution import STARTED, Outcome, execute, kill_group
from areal_sandbox.files import read_file, write_file

WORK = "/sandbox"
_NOBODY = "65534:65534"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_HELD = "echo ready; exec cat > /dev/null"
_CLEAN = f'printf {STARTED.decode()} && exec env -i PATH="$PATH" HOME={WORK} LANG=C.UTF-8 "$@"'
_KILLS = f"""\
printf {STARTED.decode()}
cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2> /dev/null
kill -9 -1"""
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_OUR_PROCESSES = 6
_TIDY_S = 30.0


def arguments(limits: Limits, config: ContainerConfig, image: str, name: str) -> list[str]:
    """Return what follows `docker` to make a container and hold it until standard input ends."""
    memory = f"{limits.memory_mb + limits.disk_mb}m"
    folder = f"rw,exec,nosuid,nodev,size={limits.disk_mb}m,mode=1777"
    return [
        *("run", "--rm", "--interactive", "--init", "--name", name, "--hostname", "sandbox"),
        *(["--runtime", config.runtime] if config.runtime else []),
        *([] if limits.network else ["--network", "none"]),
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes + _OUR_PROCESSES)),
        *(
            "--read-only",
            "--tmpfs",
            f"{WORK}:{folder}",
            "--tmpfs",
            f"/tmp:{folder}",
            "--shm-size",
            f"{limits.disk_mb}m",
        ),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "0:0", "--workdir", WORK),
        *("--entrypoint", "sh", image or config.image, "-c", _HELD),
    ]


@define(eq=False)
class Container:
    """A `Sandbox` of the providers `docker` and `podman`."""

    program: str
    name: str
    limits: Limits
    _process: asyncio.subprocess.Process = field(alias="process")
    _turn: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    @classmethod
    async def make(cls, program: str, limits: Limits, config: ContainerConfig, image: str) -> Container:
        """Make a container and wait until it is there.

        Raises:
            SandboxError: the command refuses; its own words are in the error.
        """
        name = f"areal-sandbox-{os.getpid()}-{secrets.token_hex(4)}"
        process = await asyncio.create_subprocess_exec(
            program, *arguments(limits, config, image, name),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        made = cls(program=program, name=name, limits=limits, process=process)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                ready = await process.stdout.readline()
                why = "" if ready else (await process.stderr.read()).decode(errors="replace").strip()
        except BaseException as error:
            await made.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"{program} made no container within {config.start_timeout_s:g} s",
                                   fix=f"{program} pull {image or config.image}") from None  # fmt: skip
            raise
        if not ready:
            await made.close()
            raise SandboxError(f"{program} made no container of {image or config.image}", why=why,
                               fix=f"try {program} run --rm --init {image or config.image} true")  # fmt: skip
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
            *(self.program, "rm", "--force", self.name),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await removal.wait()
        kill_group(self._process.pid)
        await self._process.wait()

    async def _tended(self, command: list[str], stdin: bytes, max_output: int) -> Outcome:
        return await self._execute(command, stdin, max_output, self.limits.timeout_s)

    async def _execute(self, command: Sequence[str], stdin: bytes, max_output: int, timeout_s: float) -> Outcome:
        async with self._turn:
            before = await self._tidied()
            try:
                outcome = await execute(
                    [*self._enter("--interactive"), "sh", "-c", _CLEAN, "sh", *command],
                    stdin=stdin, max_output=max_output, timeout_s=timeout_s,
                )  # fmt: skip
            except SandboxError:
                self._require_open()
                raise
            finally:
                after = await asyncio.shield(self._tidied())
            return evolve(outcome, stopped=Ending.MEMORY) if after > before else outcome

    async def _tidied(self) -> int:
        """Kill what runs in the container; return how many processes were killed so far for want of memory."""
        self._require_open()
        outcome = await execute([*self._enter(), "sh", "-c", _KILLS], max_output=4096, timeout_s=_TIDY_S)
        return sum(int(count) for count in _COUNT.findall(outcome.stdout.decode(errors="replace")))

    def _enter(self, *options: str) -> list[str]:
        return [self.program, "exec", *options, "--user", _NOBODY, "--workdir", WORK, self.name]

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed", fix="open another one")
        if self._process.returncode is not None:
            raise SandboxError("the sandbox is gone", why=f"container {self.name} ended", fix="open another one")
