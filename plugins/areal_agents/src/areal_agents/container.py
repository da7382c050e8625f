"""A command in a container of its own: docker or podman, whichever is there.

Knows: arguments of `run` and `rm`, which both programs share.
Does not know: what the command is for (`command`), or where the image comes from.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import field, frozen

from areal_core.contract.errors import ConfigError

PROGRAMS = ("docker", "podman")


def container_program() -> str:
    """Return the program that runs containers here.

    Raises:
        ConfigError: there is none.
    """
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise ConfigError(
            "there is nothing here that runs containers",
            why=f"rollout.workflow.options.container is set, and neither {' nor '.join(PROGRAMS)} is on the PATH",
            fix="install one of them, or remove `container`: the command then runs as a process of this machine",
        )
    return found


@frozen(kw_only=True)
class Container:
    """One container, from its name to its end.

    Example: Container(image="my-agent:latest", folder=Path("/tmp/areal-agent-x"), variables=("OPENAI_API_KEY",))
    """

    image: str
    folder: Path
    """Seen inside under the same path."""
    variables: Iterable[str]
    """Names only: their values are those of the program's own environment, so none stands on a command line."""
    program: str = field(factory=container_program)
    name: str = field(factory=lambda: f"areal-agent-{secrets.token_hex(8)}")

    def run(self, command: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Return the command that runs another one inside, in a folder, on this machine's network."""
        user = f"{os.getuid()}:{os.getgid()}"
        named = [word for name in self.variables for word in ("--env", name)]
        where = ["--volume", f"{self.folder}:{self.folder}", "--workdir", str(folder)]
        return (
            *(self.program, "run", "--rm", "--interactive", "--name", self.name, "--network", "host", "--user", user),
            *(*where, *named, self.image, *command),
        )

    def remove(self) -> tuple[str, ...]:
        """Return the command that ends it, whatever it does."""
        return (self.program, "rm", "--force", self.name)
