"""Whether a sandbox exceeds what it may use: told by its control group, or by looking at its processes.

Knows: how often one looks, and what counts.
Does not know: how anything is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil

from areal_agentic.sandbox import Ending, Limits
from areal_sandbox.local.groups import Group

GROUP_S = 0.05
PROCESSES_S = 0.1
_OUR_PROCESSES = 4
_MIB = 1 << 20


async def watch_group(group: Group, kills: int) -> Ending:
    """Return once the kernel killed something of a group: more often than `kills` times, which was before."""
    while group.kills() <= kills:  # noqa: ASYNC110  (the kernel tells by a file)
        await asyncio.sleep(GROUP_S)
    return Ending.MEMORY


async def watch_processes(limits: Limits, *roots: int) -> Ending:
    """Return once all that descends from the roots takes more memory, or is more processes, than it may.

    The memory of a process counts in full, also what it shares.
    """
    while True:
        memory, count = await asyncio.to_thread(_taken, roots)
        if memory > limits.memory_mb * _MIB:
            return Ending.MEMORY
        if count > limits.processes + _OUR_PROCESSES:
            return Ending.KILLED
        await asyncio.sleep(PROCESSES_S)


def _taken(roots: tuple[int, ...]) -> tuple[int, int]:
    """Return bytes in memory, and the number of processes and threads."""
    memory = count = 0
    for pid in _descendants(roots):
        try:
            process = psutil.Process(pid)
            memory += process.memory_info().rss
            count += process.num_threads()
        except psutil.Error:  # it ended meanwhile
            continue
    return memory, count


def _descendants(roots: tuple[int, ...]) -> Iterator[int]:
    waiting = list(roots)
    while waiting:
        try:
            listed = [file.read_text() for file in Path(f"/proc/{waiting.pop()}/task").glob("*/children")]
        except OSError:  # it ended meanwhile
            continue
        found = [int(child) for children in listed for child in children.split()]
        yield from found
        waiting += found
