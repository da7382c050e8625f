"""One rented machine as a sandbox: each command is one shell script, run there by its root.

The machine is what confines a command. In it commands belong to a user of their own without a way to more rights, so
that what one leaves behind can neither change how the next is run nor outlive it.

Knows: the script, and what its answer means.
Does not know: whose machine it is, or how its owner is asked (`e2b`, `daytona`).
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from attrs import define, field

from areal_agentic.sandbox import Ending, Limits, Ran, SandboxError
from areal_sandbox.execution import Outcome
from areal_sandbox.files import read_file, write_file

WORK, CONTROL, USER = "/home/sandbox", "/run/areal", 54_321
"""The folder commands work in, one that they cannot enter, and who they are."""
SLACK_S = 30.0
"""What a request may take beyond the command."""
_NEEDED = "setpriv prlimit timeout base64 head mkfifo env"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_MADE = f"""\
for each in {_NEEDED}; do command -v $each > /dev/null || {{ echo "there is no $each"; exit 0; }}; done
mkdir -p {WORK} && chown {USER}:{USER} {WORK} && mkdir -p -m 700 {CONTROL} && echo made 2>&1"""
_KILLED = f"setpriv --reuid {USER} --clear-groups sh -c 'kill -9 -1' 2> /dev/null"
"""Linux signals all that a user may signal at once: nothing can be started in between."""
_RUN = f"""\
here={CONTROL}/$1 most=$2 seconds=$3; shift 3
mkdir -p -m 700 $here && mkfifo $here/1 $here/2 && cd {WORK} || exit 1
[ -e $here/0 ] || : > $here/0
for each in 1 2; do {{ head -c $most; cat > /dev/null; }} < $here/$each > $here/out$each & done
read -r began rest < /proc/uptime
timeout --foreground -s KILL $seconds setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs "$@" \\
  < $here/0 > $here/1 2> $here/2
code=$?
read -r ended rest < /proc/uptime
{_KILLED}
wait
echo $code $began $ended
base64 $here/out1 | tr -d '\\n'; echo
base64 $here/out2 | tr -d '\\n'; echo
rm -rf $here"""


class Machine(Protocol):
    """A machine of a provider. What fails raises SandboxError."""

    async def shell(self, script: str, timeout_s: float) -> str:
        """Have root's shell run a script, and return what it prints."""

    async def upload(self, path: str, data: bytes) -> None:
        """Write root's file, its folders made."""

    async def destroy(self) -> None:
        """Give the machine back. Idempotent."""


@define(eq=False)
class HostedSandbox:
    """A `Sandbox` on a machine."""

    _machine: Machine = field(alias="machine")
    _limits: Limits = field(alias="limits")
    _ended: Callable[[HostedSandbox], object] = field(alias="ended")
    """Told once it is closed."""
    _turn: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    async def prepare(self) -> None:
        """Make the folders.

        Raises:
            SandboxError: the machine lacks a program.
        """
        told = (await self._machine.shell(_MADE, SLACK_S)).strip()
        if told != "made":
            raise SandboxError("the machine cannot be made a sandbox", why=told or "it said nothing",
                               fix="take an image with bash or sh, coreutils and util-linux")  # fmt: skip

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = _NOTHING,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command in the working folder, as the contract says."""
        seconds = self._limits.timeout_s if timeout_s is None else min(timeout_s, self._limits.timeout_s)
        return (await self._execute(command, stdin, self._limits.output_bytes, environment, seconds)).ran()

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, relative to the working folder."""
        await write_file(self._tended, path, data)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a file's first bytes."""
        return await read_file(self._tended, path, max_bytes)

    async def close(self) -> None:
        """Give the machine back, with whatever runs on it. Idempotent."""
        self._closed = True
        await self._machine.destroy()
        self._ended(self)

    async def _tended(self, command: list[str], stdin: bytes, max_output: int) -> Outcome:
        return await self._execute(command, stdin, max_output, _NOTHING, self._limits.timeout_s)

    async def _execute(
        self, command: Sequence[str], stdin: bytes, max_output: int, environment: Mapping[str, str], timeout_s: float
    ) -> Outcome:
        async with self._turn:
            self._require_open()
            name = secrets.token_hex(8)
            try:
                if stdin:
                    await self._machine.upload(f"{CONTROL}/{name}/0", stdin)
                words = [name, str(max_output + 1), f"{timeout_s:.3f}", *self._bounded(environment), *command]
                told = await self._machine.shell(
                    f"sh -c {shlex.quote(_RUN)} sh {shlex.join(words)}", timeout_s + SLACK_S
                )
            except asyncio.CancelledError:
                await asyncio.shield(self._kill())
                raise
            except (SandboxError, ValueError):
                self._require_open()  # it failed, since it was closed meanwhile
                raise
            return _outcome(told, max_output, timeout_s)

    def _bounded(self, environment: Mapping[str, str]) -> list[str]:
        """Return the command line that sets limits of single processes and variables, and goes on."""
        limits = self._limits
        bounds = {"core": 0, "nofile": 1024, "nproc": limits.processes, "data": limits.memory_mb << 20,
                  "fsize": limits.disk_mb << 20}  # fmt: skip
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8", **environment}
        prlimit = ["prlimit", *(f"--{name}={bound}" for name, bound in bounds.items()), "--"]
        return [*prlimit, "env", "-i", *(f"{name}={value}" for name, value in variables.items())]

    async def _kill(self) -> None:
        """Kill what commands run; the script around them ends by itself."""
        try:
            await self._machine.shell(f"{_KILLED}; exit 0", SLACK_S)  # the script around it kills as well
        except SandboxError:
            await self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed", fix="open another one")


def _outcome(told: str, max_output: int, timeout_s: float) -> Outcome:
    """Return what the script's answer says.

    Raises:
        SandboxError: it is none.
    """
    try:
        ends, stdout, stderr = told.splitlines()[-3:]
        code, began, ended = ends.split()
        seconds = float(ended) - float(began)
        outputs = base64.b64decode(stdout, validate=True), base64.b64decode(stderr, validate=True)
    except ValueError as error:
        raise SandboxError(
            "a command in a sandbox did not start", why=told[-400:] or "the machine said nothing"
        ) from error
    return Outcome(
        code=int(code),
        stdout=outputs[0][:max_output],
        stderr=outputs[1][:max_output],
        truncated=any(len(output) > max_output for output in outputs),
        seconds=seconds,
        stopped=Ending.TIMEOUT if int(code) == 137 and seconds >= timeout_s - 0.02 else None,
    )
