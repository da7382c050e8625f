"""A rank's memory on the CPU, given back and taken again: SGLang answers there, and frees nothing.

Knows: weights, and the pool of keys and values.
Does not know: when that is safe, which SGLang checks, or how new weights come.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

MAPPED = 32 * 2**20
"""Memory of this size comes from the system, which hands out zeros; writing them would take all of it at once."""
_freed: dict[int, tuple[Any, int]] = {}
"""Storages without memory, with their sizes. Any: torch's."""


def released(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Hook of SchedulerWeightUpdaterManager.release_memory_occupation. Any: SGLang's own."""
    answer = original(manager, request)
    runner = manager.tp_worker.model_runner
    if runner.device == "cpu" and not _freed:
        for storage in _storages(runner):
            if storage.nbytes() and storage.resizable():
                _freed[storage.data_ptr()] = (storage, storage.nbytes())
        for storage, _ in _freed.values():
            storage.resize_(0)
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)
    return answer


def resumed(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Hook of SchedulerWeightUpdaterManager.resume_memory_occupation: weights are of any value, the pool is zero."""
    taken = list(_freed.values())
    _freed.clear()
    for storage, size in taken:
        storage.resize_(size)
    if taken:
        for buffer in _pool(manager.tp_worker.model_runner):
            if buffer.untyped_storage().nbytes() < MAPPED:
                buffer.zero_()
    return original(manager, request)


def _storages(runner: Any) -> Iterator[Any]:
    for tensor in (*runner.model.parameters(), *_pool(runner)):
        yield tensor.untyped_storage()


def _pool(runner: Any) -> Iterator[Any]:
    pool = runner.token_to_kv_pool
    for name in ("k_buffer", "v_buffer", "kv_buffer"):
        yield from getattr(pool, name, None) or ()
