"""A command in a container of its own: docker or podman, whichever is there.

Knows: arguments of `run` and `rm`, most of which both programs share.
Does not know: what the command is for (`command`), or where the image comes from.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from areal_core.contract.errors import ConfigError

PROGRAMS = ("docker", "podman")
_ANSWER_S = 30.0
_LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 65_536), "nproc": (resource.RLIMIT_NPROC, 32_768)}


def container_program() -> str:
    """Return the program that runs containers here: the first that is there, and answers.

    Raises:
        ConfigError: there is none.
    """
    silent = []
    for program in filter(None, map(shutil.which, PROGRAMS)):
        why = _refusal(program)
        if not why:
            return program
        silent.append(f"{program}: {why}")
    raise ConfigError(
        "there is nothing here that runs containers",
        why="rollout.workflow.options.container is set, and "
        + ("; ".join(silent) if silent else f"neither {' nor '.join(PROGRAMS)} is on the PATH"),
        fix="install or start one of them, or remove `container`: the command then runs as a process of this machine",
    )


def _refusal(program: str) -> str:
    """Return why a program cannot run containers: docker without its daemon cannot tell both versions."""
    try:
        done = subprocess.run([program, "version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or f"exit code {done.returncode}"


@frozen(kw_only=True)
class Container:
    """One container, from its name to its end.

    Example: Container(program="podman", image="my-agent", folder=Path("/tmp/x"), secret=("OPENAI_API_KEY",))
    """

    image: str
    folder: Path
    """Seen inside under the same path."""
    variables: Mapping[str, str] = field(factory=dict)
    secret: Iterable[str] = ()
    """Names of more: their values are those of the program's own environment, so none stands on a command line."""
    program: str
    """docker or podman, by `container_program`."""
    name: str = field(factory=lambda: f"areal-agent-{secrets.token_hex(8)}")

    def run(self, command: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Return the command that runs another one inside, in a folder, as this user, on this machine's network."""
        named = [*(f"{name}={value}" for name, value in self.variables.items()), *self.secret]
        where = ["--volume", f"{self.folder}:{self.folder}", "--workdir", str(folder)]
        return (
            *(self.program, "run", "--rm", "--interactive", "--name", self.name, "--network", "host"),
            *(*self._user(), *self._limits(), *where, *(word for each in named for word in ("--env", each))),
            *(self.image, *command),
        )

    def remove(self) -> tuple[str, ...]:
        """Return the command that ends it, whatever it does."""
        return (self.program, "rm", "--force", self.name)

    def _user(self) -> list[str]:
        uid, gid = os.getuid(), os.getgid()
        return [*(["--userns", "keep-id"] if uid and self._podman else []), "--user", f"{uid}:{gid}"]

    def _limits(self) -> list[str]:
        """Return limits for podman, which of itself sets higher ones than a confined root may."""
        if not self._podman:
            return []
        words = []
        for name, (kind, most) in _LIMITS.items():
            hard = resource.getrlimit(kind)[1]
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            words += ["--ulimit", f"{name}={limit}:{limit}"]
        return words

    @property
    def _podman(self) -> bool:
        return Path(self.program).name == "podman"
