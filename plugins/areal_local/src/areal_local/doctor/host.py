"""Checks of the machine: interpreter, processors, memory, disk, shared memory, ports, devices.

Knows: what a run needs of a machine, and how to see it without importing torch.
Does not know: plugins.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from areal_core.contract.device import Device
from areal_core.plugins.findings import Finding, Severity

GIB = 1 << 30
MIN_PYTHON = (3, 11)
MIN_MEMORY = 2 * GIB
MIN_DISK = 5 * GIB
MIN_SHARED_MEMORY = GIB


def check_host(folder: Path, kinds: Sequence[Device] = (), root: Path = Path("/")) -> list[Finding]:
    """Run every check of the machine.

    Args:
        folder: where runs will be written.
        kinds: the kinds of accelerator to look for.
        root: the root of the file system; another one in tests.
    """
    return [
        check_python(sys.version_info[:3]),
        check_processors(),
        check_memory(psutil.virtual_memory().available, memory_limit(root)),
        check_disk(folder),
        check_shared_memory(root / "dev/shm"),
        check_port("127.0.0.1"),
        check_devices(kinds),
        *(describe_kind(kind) for kind in kinds if kind.see(os.environ)),
    ]


def check_python(version: tuple[int, ...]) -> Finding:
    """Compare the interpreter with the oldest one supported."""
    level = Severity.OK if version >= MIN_PYTHON else Severity.ERROR
    wanted = ".".join(map(str, MIN_PYTHON))
    what = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    fix = "" if level is Severity.OK else f"make an environment with Python {wanted} or newer"
    return Finding(code="host.python", level=level, subject="python", what=what, fix=fix)


def check_processors() -> Finding:
    """Count the processor cores this process may use, which in a container is not the machine's number."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(
        code="host.processors", level=Severity.OK, subject="processors", what=f"{usable} usable of {os.cpu_count()}"
    )


def check_memory(available: int, limit: int | None) -> Finding:
    """Judge the memory that is free, and no more than a container may use; both in bytes."""
    usable = available if limit is None else min(available, limit)
    level = Severity.OK if usable >= MIN_MEMORY else Severity.WARNING
    what = f"{_gib(usable)} available" + (f", limited to {_gib(limit)}" if limit is not None else "")
    fix = (
        "" if level is Severity.OK else "a trainer and a generator need 2 GiB even for a small model; free some memory"
    )
    return Finding(code="host.memory", level=level, subject="memory", what=what, fix=fix)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes the container may still take, None where there is no limit."""
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text().strip()
    except OSError:
        return None
    return max(int(limit) - int(used), 0) if limit.isdigit() and used.isdigit() else None


def check_disk(folder: Path) -> Finding:
    """Judge the free space where checkpoints will be written."""
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Finding(
            code="host.disk",
            level=Severity.ERROR,
            subject="disk",
            what=f"{folder} is not writable",
            fix="start areal in a folder of your own, or set `out:`",
        )
    level = Severity.OK if free >= MIN_DISK else Severity.WARNING
    fix = "" if level is Severity.OK else "free some space, or set `out:` to a folder on another disk"
    return Finding(code="host.disk", level=level, subject="disk", what=f"{_gib(free)} free in {folder}", fix=fix)


def check_shared_memory(folder: Path) -> Finding:
    """Judge the size of /dev/shm, which the shm transport and PyTorch's loaders use."""
    if not folder.is_dir():
        return Finding(
            code="host.shm",
            level=Severity.WARNING,
            subject="shared memory",
            what=f"there is no {folder}",
            fix="set weight_sync.transport: disk",
        )
    usage = shutil.disk_usage(folder)
    return judge_shared_memory(usage.total, usage.free)


def judge_shared_memory(total: int, free: int) -> Finding:
    """Judge a size in bytes; containers start with 64 MiB, too little for the weights of any model."""
    level = Severity.OK if free >= MIN_SHARED_MEMORY else Severity.WARNING
    fix = "" if level is Severity.OK else "docker run --shm-size=8g, or set weight_sync.transport: disk"
    what = f"{_gib(free)} free of {_gib(total)}"
    return Finding(code="host.shm", level=level, subject="shared memory", what=what, fix=fix)


def check_port(address: str) -> Finding:
    """Bind a port of the loopback interface, as every worker will."""
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
    except OSError as exc:
        return Finding(
            code="host.port",
            level=Severity.ERROR,
            subject="ports",
            what=f"no port of {address} can be bound: {exc}",
            fix="bring up the loopback interface: ip link set lo up",
        )
    return Finding(code="host.port", level=Severity.OK, subject="ports", what=f"{address}:{port} can be bound")


def check_devices(kinds: Iterable[Device]) -> Finding:
    """List the accelerators seen; none is fine, the processor is a device as well. A stand-in says that it is one."""
    counts = Counter((kind, seen.name) for kind in kinds for seen in kind.see(os.environ))
    what = ", ".join(
        f"{count} x {name} ({kind.name}{', a stand-in' if kind.stand_in else ''})"
        for (kind, name), count in counts.items()
    )
    return Finding(code="host.devices", level=Severity.OK, subject="devices", what=what or "no accelerator, cpu only")


def describe_kind(kind: Device) -> Finding:
    """Say what a kind of accelerator seen here declares about itself, and how many of it this process may use."""
    seen, visible = len(kind.see(os.environ)), len(kind.visible(os.environ))
    facts = (
        f"{visible} of {seen} visible to this process",
        f"vendor {kind.vendor}",
        f"scheduler resource {kind.resource or 'not named'}",
        "memory can be shared between processes (IPC)" if kind.ipc else "no memory shared between processes (IPC)",
        f"attention kernel {kind.attention or 'of torch'}",
    )
    return Finding(code="host.device", level=Severity.OK, subject=f"device {kind.name}", what=", ".join(facts))


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
