"""Figures of level 5: seconds in turns, medians, the most memory that a process and its children held, and what
something adds to it.

Knows: clocks and resident memory.
Does not know: what is measured, or which figures are good.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import psutil
import torch
from attrs import define

REPEATS, LIVES = 5, 3
_LOOK_S = 0.01


def in_turns(actions: Mapping[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """Return the median seconds of each action; they take turns, and the first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


async def awaited_in_turns(
    actions: Mapping[str, Callable[[], Awaitable[object]]], repeats: int = REPEATS
) -> dict[str, float]:
    """As `in_turns`, for coroutine functions."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            began = time.perf_counter()
            await action()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


@define
class Peak:
    """The most bytes seen so far."""

    bytes: int = 0
    began: int = 0
    """What was held before."""

    @property
    def megabytes(self) -> float:
        """Return it in 10^6 bytes."""
        return self.bytes / 1e6

    @property
    def grown(self) -> int:
        """Return what came on top of what was held before."""
        return max(0, self.bytes - self.began)


def grown_in_turns(device: str, lives: Mapping[str, Callable[[], object]], repeats: int = LIVES) -> dict[str, float]:
    """Return the median bytes that each life adds to what was held before it; they take turns.

    A life builds something, works with it and lets it go. The first turn does not count: what a library keeps from its
    first use on belongs to nobody.
    """
    grown: dict[str, list[int]] = {name: [] for name in lives}
    for _ in range(repeats + 1):
        for name, life in lives.items():
            _let_go()
            with peak_memory(device) as peak:
                life()
            grown[name].append(peak.grown)
    return {name: statistics.median(found[1:]) for name, found in grown.items()}


async def awaited_grown_in_turns(
    device: str, lives: Mapping[str, Callable[[], Awaitable[object]]], repeats: int = LIVES
) -> dict[str, float]:
    """As `grown_in_turns`, for coroutine functions."""
    grown: dict[str, list[int]] = {name: [] for name in lives}
    for _ in range(repeats + 1):
        for name, life in lives.items():
            _let_go()
            with peak_memory(device) as peak:
                await life()
            grown[name].append(peak.grown)
    return {name: statistics.median(found[1:]) for name, found in grown.items()}


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Follow the most memory held in the block: of the device's allocator in this process, on the CPU resident bytes
    of this process and its children. A server in a process of its own has its device memory to itself: 0 is told."""
    peak = Peak()
    accelerator = None if device == "cpu" else torch.get_device_module(device)
    if accelerator is not None:
        accelerator.reset_peak_memory_stats()
        peak.began = accelerator.memory_allocated()
        yield peak
        peak.bytes = accelerator.max_memory_allocated()
        return
    peak.began = _resident()
    exact = _forget_high_water()
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(_LOOK_S):
            peak.bytes = max(peak.bytes, _resident())

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        peak.bytes = max(peak.bytes, _resident(), _high_water() if exact else 0)


def _let_go() -> None:
    """Give back what nobody uses any more, so that it is not held twice and counted once."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _forget_high_water() -> bool:
    """Have Linux count the most memory of this process from now on, which looks alone may miss; False elsewhere."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _high_water() -> int:
    """Return the most resident bytes of this process since then."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _resident() -> int:
    total = 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total
