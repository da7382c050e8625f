"""What a command in a sandbox sees: bubblewrap's arguments.

Knows: which folders of the system are shown, what is writable, what is cut off.
Does not know: processes.
"""

from __future__ import annotations

import functools
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from areal_agentic.sandbox import Limits, SandboxError
from areal_sandbox.execution import ANNOUNCED
from areal_sandbox.local.room import HOST, TOP, USER, WORK, place

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
_NETWORK = ("/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki", "/etc/ca-certificates")
_FILES = 1024
_PATH = "/usr/local/bin:/usr/bin:/bin"
_CONFINED = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
)


@frozen(kw_only=True)
class Python:
    """An interpreter and the folders it needs.

    Example: Python(program="/usr/bin/python3", folders=("/usr",))
    """

    program: str
    folders: tuple[str, ...]


@frozen(kw_only=True)
class View:
    """The same for all sandboxes of a provider."""

    python: Python
    readable: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """Files and folders beside the system's, which the room has to have."""
        return self.python.folders + self.readable

    def arguments(self, limits: Limits, environment: Mapping[str, str], filter_from: int | None) -> list[str]:
        """Return bubblewrap's command line without the command. `filter_from` is a descriptor with a seccomp filter."""
        variables = {"PATH": f"{Path(self.python.program).parent}:{_PATH}", "HOME": WORK, "LANG": "C.UTF-8"}
        return [
            "bwrap",
            *_CONFINED,
            *(["--disable-userns"] if can_disable_userns() else []),
            *([] if limits.network else ["--unshare-net"]),
            *("--uid", USER, "--gid", USER, "--hostname", HOST),
            *(word for name, value in {**variables, **environment}.items() for word in ("--setenv", name, value)),
            *_system(limits.network),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--bind", f"{TOP}/work", WORK, "--bind", f"{TOP}/tmp", "/tmp", "--bind", f"{TOP}/shm", "/dev/shm"),
            *(word for number, path in enumerate(self.shown) for word in ("--ro-bind", place(number), path)),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK),
            *([] if filter_from is None else ["--seccomp", str(filter_from)]),
            "--",
        ]


def bounded(limits: Limits, *, grouped: bool) -> list[str]:
    """Return the command line that tells that the sandbox is there, sets limits of single processes, and goes on.

    Without control groups these hold what can be taken until the sum of all processes is looked at again. With them
    they are a second wall.
    """
    bounds = ["--core=0", f"--nofile={min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])}"]
    if counts_processes():
        bounds.append(f"--nproc={limits.processes + 1}")
    if not grouped:
        bounds.append(f"--data={2 * limits.memory_mb << 20}")
    return ["/bin/sh", "-c", ANNOUNCED, "sh", "prlimit", *bounds, "--"]


def counts_processes(release: str = platform.release()) -> bool:
    """Whether Linux counts a user's processes for each namespace, as it does since 5.14.

    Before, the limit of a sandbox would count those outside, and it is not set.
    """
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2]) >= (5, 14)


def find_python(program: str) -> Python:
    """Return an interpreter with its folders; an empty name is the one areal runs on.

    Raises:
        SandboxError: there is none under that name.
    """
    if not program:
        base = getattr(sys, "_base_executable", sys.executable) or sys.executable
        return Python(program=str(Path(base).resolve()), folders=_outside_system([sys.base_prefix]))
    ask = "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"
    try:
        done = subprocess.run([program, "-I", "-c", ask], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"{program} is no Python that runs", why=str(error),
                           fix="name the path of an interpreter in `python`") from error  # fmt: skip
    return Python(program=program, folders=_outside_system(done.stdout.splitlines()))


def _outside_system(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        folder for folder in dict.fromkeys(folders) if not any(Path(folder).is_relative_to(top) for top in _SYSTEM)
    )


@functools.cache
def can_disable_userns() -> bool:
    """Whether this bubblewrap, 0.8 or newer, can keep commands from making user namespaces."""
    told = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False)
    return "--disable-userns" in told.stdout + told.stderr


def _system(network: bool) -> Iterator[str]:
    for path in (*_SYSTEM, *_SETTINGS, *(_NETWORK if network else ())):
        if path in _SYSTEM and Path(path).is_symlink():
            yield from ("--symlink", str(Path(path).readlink()), path)
        else:
            yield from ("--ro-bind-try", path, path)
    for name in ("passwd", "group", "hosts"):
        yield from ("--ro-bind", f"{TOP}/etc/{name}", f"/etc/{name}")
