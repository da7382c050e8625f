"""Figures of level 5: seconds in turns, medians, and the most memory that a process and its children held.

Knows: clocks and resident memory.
Does not know: what is measured, or which figures are good.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import psutil
import torch
from attrs import define

REPEATS = 5
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

    @property
    def megabytes(self) -> float:
        """Return it in 10^6 bytes."""
        return self.bytes / 1e6


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Follow the most memory held in the block: of the device's allocator in this process, on the CPU resident bytes
    of this process and its children. A server in a process of its own has its device memory to itself: 0 is told."""
    peak = Peak()
    accelerator = None if device == "cpu" else torch.get_device_module(device)
    if accelerator is not None:
        accelerator.reset_peak_memory_stats()
        yield peak
        peak.bytes = accelerator.max_memory_allocated()
        return
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
        peak.bytes = max(peak.bytes, _resident())


def _resident() -> int:
    total = 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total
