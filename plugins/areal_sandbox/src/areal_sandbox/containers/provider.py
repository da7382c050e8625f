"""The providers `docker` and `podman`: sandboxes that are containers of any image.

Knows: whether the command works here, and the containers that are open.
Does not know: what a container is made with (`container`).
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from attrs import define, field

from areal_agentic.sandbox import Limits, Sandbox, SandboxError
from areal_sandbox.containers.config import ContainerConfig
from areal_sandbox.containers.container import Container
from areal_sandbox.proof import SHELL, SMALL, prove

_START = {"docker": "systemctl start docker, or dockerd; and let this user reach it", "podman": "podman system reset"}
_UNHELD = "use control groups v2 (a rootless podman has none of v1), or run as root"
_CHECK_S = 30.0


@define(eq=False)
class ContainerProvider:
    """A `SandboxProvider`."""

    program: str
    config: ContainerConfig = field(factory=ContainerConfig)
    _open: set[Container] = field(factory=set, init=False)

    def check(self) -> None:
        """Tell whether the command makes containers, and whether they hold their limits, by exceeding them."""
        if shutil.which(self.program) is None:
            raise SandboxError(f"no sandbox of the provider {self.program}", why=f"{self.program} not found on PATH",
                               fix=f"install {self.program}, or choose another provider")  # fmt: skip
        try:
            done = subprocess.run([self.program, "info"], capture_output=True, text=True, timeout=_CHECK_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"no sandbox of the provider {self.program}", why=str(error),
                               fix=_START[self.program]) from error  # fmt: skip
        if done.returncode != 0:
            why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise SandboxError(f"no sandbox of the provider {self.program}", why="".join(why), fix=_START[self.program])
        with ThreadPoolExecutor(1) as thread:  # a loop of its own: this may be called where one runs
            thread.submit(asyncio.run, _trial(ContainerProvider(self.program, self.config))).result()

    async def open(self, limits: Limits, *, image: str = "") -> Sandbox:
        """Return a new, empty sandbox, of the image in the options if none is named."""
        if shutil.which(self.program) is None:
            raise SandboxError(f"{self.program} not found on PATH", fix=f"install {self.program}")
        making = asyncio.ensure_future(Container.make(self.program, limits, self.config, image, self._open.discard))
        try:
            container = await asyncio.shield(making)
        except asyncio.CancelledError:
            await (await making).close()
            raise
        self._open.add(container)
        return container

    async def close(self) -> None:
        """Close every sandbox that is open. Idempotent."""
        await asyncio.gather(*(container.close() for container in set(self._open)))


async def _trial(provider: ContainerProvider) -> None:
    try:
        await prove(await provider.open(SMALL), SHELL, _UNHELD)
    finally:
        await provider.close()


def docker(config: ContainerConfig) -> ContainerProvider:
    """Return the provider that calls docker."""
    return ContainerProvider("docker", config)


def podman(config: ContainerConfig) -> ContainerProvider:
    """Return the provider that calls podman."""
    return ContainerProvider("podman", config)
