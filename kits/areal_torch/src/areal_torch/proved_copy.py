"""Copies of tensors with fingerprints of what was written, in one pass, on a few threads.

A tile is hashed while it is still in the cache that copying it left it in. Copying and hashing both let go of the
interpreter, so the tensors of a bucket are shared out among threads. Whoever calls is one of them, and takes the next
tensor itself: a thread that hands out work would contend for the interpreter with those that do it.

Knows: tiles, threads, and which tensors can be taken apart.
Does not know: transports, models, or what becomes of the fingerprints.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from areal_core.contract.device import CPU
from areal_core.weights.tensors import fingerprint, octets, raw_bytes

TILE_BYTES = 1024 * 1024
"""A second-level cache. Of two threads one waits for the interpreter after each tile, so smaller ones cost more than
they save; larger ones would only leave the cache."""
MAX_THREADS = 4
"""Two keep up with the memory of most machines, and trainer and replicas have other work."""
_WORTH_A_THREAD = 4 << 20


def copy_proved(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[str]:
    """Copy the second tensor of each pair into the first; return the fingerprints of what the first ones hold then.

    Any dtypes, devices and strides of one shape, as `Tensor.copy_` takes them. Targets share no memory.
    """
    jobs: list[Callable[[], str]] = []
    size = 0
    with torch.no_grad():
        for target, source in pairs:
            tiled = _plain(target) and _plain(source) and target.dtype == source.dtype
            if not tiled:
                target.copy_(source)
            jobs.append(_job(target, _copied(target, source) if tiled else None))
            size += target.nbytes
    return _done(jobs, size)


def prove(tensors: Sequence[Tensor]) -> list[str]:
    """Return the fingerprint of each tensor, in order."""
    return _done([_job(tensor) for tensor in tensors], sum(tensor.nbytes for tensor in tensors))


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == CPU and tensor.is_contiguous()


def _job(tensor: Tensor, parts: Iterable[memoryview] | None = None) -> Callable[[], str]:
    """Return what gives the fingerprint: later and in any thread, or already, where the order of a device matters."""
    if _plain(tensor):
        return partial(fingerprint, tensor, parts)
    digits = fingerprint(tensor)
    return lambda: digits


def _copied(target: Tensor, source: Tensor) -> Iterator[memoryview]:
    """Copy tile by tile, and yield each as it lies in the target."""
    into, out = raw_bytes(target), raw_bytes(source)
    written = octets(into)
    for start in range(0, into.numel(), TILE_BYTES):
        tile = written[start : start + TILE_BYTES]
        ctypes.memmove(into.data_ptr() + start, out.data_ptr() + start, len(tile))
        yield tile


def _done(jobs: Sequence[Callable[[], str]], size: int) -> list[str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    others = min(MAX_THREADS, len(jobs), cores, size // _WORTH_A_THREAD) - 1
    found = [""] * len(jobs)
    todo = iter(range(len(jobs)))  # one for all threads: it gives each number once

    def work() -> None:
        for number in todo:
            found[number] = jobs[number]()

    if others < 1:
        work()
        return found
    with ThreadPoolExecutor(others, thread_name_prefix="areal-prove") as pool:
        working = [pool.submit(work) for _ in range(others)]
        work()
        for one in working:
            one.result()
    return found
