"""Sandboxes of this machine for tests, and the proof that nothing of them is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import define

from areal_agentic.sandbox import Limits, Ran, Sandbox
from areal_sandbox.local.config import LocalSandboxConfig
from areal_sandbox.local.provider import LocalProvider
from areal_sandbox.local.room import TOP, WORK

ROOMY = Limits(timeout_s=20.0, memory_mb=128, processes=32, disk_mb=8, output_bytes=4096)


@define(slots=False)
class Bench:
    """Runs coroutines with a provider; `grouped` is whether it uses control groups."""

    grouped: bool = True
    config: LocalSandboxConfig = LocalSandboxConfig()

    def provider(self) -> LocalProvider:
        provider = LocalProvider(self.config)
        if not self.grouped:
            provider.groups = None
        return provider

    @asynccontextmanager
    async def opened(self, limits: Limits = ROOMY) -> Any:
        provider = self.provider()
        try:
            yield await provider.open(limits)
        finally:
            await provider.close()

    def __call__(self, use: Callable[[Sandbox], Awaitable[Any]], limits: Limits = ROOMY) -> Any:
        """Return what a coroutine function makes of a sandbox."""

        async def used() -> Any:
            async with self.opened(limits) as sandbox:
                return await use(sandbox)

        return asyncio.run(used())

    def run(self, *command: str, limits: Limits = ROOMY, **more: Any) -> Ran:
        """Return how one command in a sandbox of its own ends."""
        ran: Ran = self(lambda sandbox: sandbox.run(command, **more), limits)
        return ran

    def python(self, code: str, limits: Limits = ROOMY, **more: Any) -> Ran:
        return self.run("python3", "-c", code, limits=limits, **more)


def traces(provider: LocalProvider) -> dict[str, object]:
    """Return what a sandbox could leave behind: processes, open files, mounts, control groups."""
    here = psutil.Process()
    tops = () if provider.groups is None else (provider.groups.memory, provider.groups.pids)
    return {
        "processes": sorted(child.pid for child in here.children(recursive=True)),
        "files": here.num_fds(),
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if _is_ours(line)],
        "groups": sorted(str(path) for top in tops for path in top.glob(f"areal-sandbox-{here.pid}-*")),
    }


def _is_ours(mount: str) -> bool:
    """Whether a mount is a sandbox's; those of others come and go."""
    kind, place = mount.split()[2], mount.split()[1]
    return place.startswith(WORK) or (kind == "tmpfs" and place == TOP)


@pytest.fixture(scope="session")
def checked() -> None:
    """Say what is missing where no sandbox can be had, and prove that limits hold before anything tries to break them.

    Both with control groups and without: a bomb goes off nowhere else.
    """
    for grouped in (True, False):
        Bench(grouped=grouped).provider().check()


@pytest.fixture
def bench(checked: None) -> Iterator[Bench]:
    """Give sandboxes, and see that nothing of them is left."""
    provider = LocalProvider()
    before = traces(provider)

    yield Bench()

    assert before == traces(provider), "a sandbox left something behind"


@pytest.fixture(params=[True, False], ids=["groups", "looked_at"])
def either(request: pytest.FixtureRequest, bench: Bench) -> Bench:
    """Give sandboxes with control groups, and such as have none."""
    bench.grouped = request.param
    return bench
