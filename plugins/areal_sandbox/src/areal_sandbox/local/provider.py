"""The provider `local`: sandboxes of this machine, made by bubblewrap.

Knows: what has to be here, and the sandboxes that are open.
Does not know: what happens in one.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from attrs import define, field

from areal_agentic.sandbox import Limits, Sandbox, SandboxError
from areal_sandbox.local.config import LocalSandboxConfig
from areal_sandbox.local.groups import Groups, find_groups
from areal_sandbox.local.room import Room
from areal_sandbox.local.sandbox import LocalSandbox
from areal_sandbox.local.view import View, counts_processes, find_python
from areal_sandbox.proof import PYTHON, SMALL, prove

_PROGRAMS = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux",
             "prlimit": "util-linux", "mount": "mount"}  # fmt: skip
_REFUSED = (
    "allow user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, "
    "docker run --privileged (or --security-opt seccomp=unconfined --security-opt apparmor=unconfined) in a container; "
    "or choose another provider, as docker or e2b"
)

_UNHELD = (
    "use a newer kernel, allow this process control groups (systemd-run --scope -p Delegate=yes), or choose docker"
)


@define(eq=False, slots=False)
class LocalProvider:
    """A `SandboxProvider`."""

    config: LocalSandboxConfig = field(factory=LocalSandboxConfig)
    _open: set[LocalSandbox] = field(factory=set, init=False)

    @cached_property
    def view(self) -> View:
        """What commands see, found out once.

        Raises:
            SandboxError: an interpreter or a path of the options is not there.
        """
        for path in self.config.readable:
            if not Path(path).exists():
                raise SandboxError(f"readable: {path} is not there", fix="correct the options of the sandbox provider")
        return View(python=find_python(self.config.python), readable=self.config.readable)

    @cached_property
    def groups(self) -> Groups | None:
        """Where control groups can be made, found out once; None where every process is looked at instead."""
        return find_groups()

    def check(self) -> None:
        """Tell whether sandboxes can be had here, by making one, and whether it holds its limits, by exceeding them."""
        if sys.platform != "linux":
            raise SandboxError("no sandbox of the provider local", why="it needs Linux",
                               fix="choose docker, podman, e2b or daytona")  # fmt: skip
        if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
            packages = " ".join(sorted({_PROGRAMS[name] for name in missing}))
            raise SandboxError("no sandbox of the provider local", why=f"{', '.join(missing)} not found on PATH",
                               fix=f"apt-get install {packages}")  # fmt: skip
        _ = self.view  # refuses options that name what is not there
        self._require_count()
        tried = LocalProvider(self.config)
        tried.groups = self.groups
        with ThreadPoolExecutor(1) as thread:  # a loop of its own: this may be called where one runs
            thread.submit(asyncio.run, _trial(tried)).result()

    async def open(self, limits: Limits, *, image: str = "") -> Sandbox:
        """Return a new, empty sandbox."""
        if image:
            raise SandboxError(f"there is no image {image!r}", why="the provider local runs programs of this machine",
                               fix="choose docker or podman, or expose folders with the option `readable`")  # fmt: skip
        if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
            raise SandboxError(f"{missing[0]} not found on PATH", fix=f"apt-get install {_PROGRAMS[missing[0]]}")
        making = asyncio.ensure_future(self._made(limits))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await (await making).close()
            raise

    async def _made(self, limits: Limits) -> LocalSandbox:
        """Make a sandbox. Not to be broken off: until its first process is there, nobody else would tidy up."""
        view, groups = await asyncio.to_thread(lambda: (self.view, self.groups))
        self._require_count()
        try:
            group = None if groups is None else groups.make(limits)
        except OSError as error:
            raise SandboxError("a sandbox did not start", why=f"no control group for it: {error}") from error
        sandbox = LocalSandbox(room=await Room.make(limits, group, view.shown), view=view, ended=self._open.discard)
        self._open.add(sandbox)
        return sandbox

    def _require_count(self) -> None:
        """Refuse where nothing would keep a sandbox from starting processes without end."""
        if self.groups is None and not counts_processes():
            raise SandboxError(
                "no sandbox of the provider local",
                why="nothing bounds its processes: no control group can be made, and Linux is older than 5.14",
                fix="use a newer kernel, run as root or by systemd-run --scope -p Delegate=yes, or choose docker",
            )

    async def close(self) -> None:
        """Close every sandbox that is open. Idempotent."""
        await asyncio.gather(*(sandbox.close() for sandbox in set(self._open)))


async def _trial(provider: LocalProvider) -> None:
    """Make a sandbox, have it proved, and close it.

    Raises:
        SandboxError: one of these cannot be done.
    """
    try:
        try:
            sandbox = await provider.open(SMALL)
        except SandboxError as error:
            raise SandboxError("no sandbox of the provider local", why=error.why or error.what, fix=_REFUSED) from error
        ran = await sandbox.run(["python3", "-c", ""])
        if not ran.ok:
            raise SandboxError("no Python in sandboxes of the provider local", why=ran.stderr.strip() or ran.ending,
                               fix="name an interpreter with the option `python`")  # fmt: skip
        await prove(sandbox, PYTHON, _UNHELD)
    finally:
        await provider.close()
