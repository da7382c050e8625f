"""A worker's memory on the CPU, given back and taken again: vLLM's own sleep frees nothing there.

Knows: weights, what vLLM packs of them, and the cache of keys and values.
Does not know: when that is safe, or how new weights come (`loading`), which pack all of them anew.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

MAPPED = 32 * 2**20
"""Memory of this size comes from the system, which hands out zeros; writing them would take all of it at once."""


def sleep(runner: Any) -> dict[int, tuple[Any, int]]:
    """Free weights and cache; return what `wake` needs. Any: vLLM's runner, torch's storages."""
    model = runner.get_model()
    for layer in model.modules():
        if "cpu_linear" in layer.__dict__:
            layer.cpu_linear = None  # holds a copy of the weight, packed for the processor
    freed: dict[int, tuple[Any, int]] = {}
    for storage in _storages(runner, model):
        if storage.nbytes() and storage.resizable():
            freed[storage.data_ptr()] = (storage, storage.nbytes())
    for storage, _ in freed.values():
        storage.resize_(0)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    return freed


def wake(freed: dict[int, tuple[Any, int]], runner: Any) -> None:
    """Take the memory again: weights of any value, a cache of zeros. Any: as above."""
    for storage, size in freed.values():
        storage.resize_(size)
    for cache in runner.kv_caches:
        if cache.untyped_storage().nbytes() < MAPPED:
            cache.zero_()


def _storages(runner: Any, model: Any) -> Iterator[Any]:
    for parameter in model.parameters():
        yield parameter.untyped_storage()
    for cache in runner.kv_caches:
        yield cache.untyped_storage()
