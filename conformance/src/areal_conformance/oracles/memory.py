"""How much memory a device holds for tensors of this process.

Knows: the allocator of accelerators, and the tensors Python can reach on a CPU.
Does not know: whose they are.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def of_newcomers() -> Iterator[None]:
    """Let collections and counts of the block look at what it makes only: modules of engines are a million objects.

    What nobody holds any more is let go first.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def held_bytes(device: str) -> int:
    """Return the bytes of live tensors on a device; on the CPU, of every storage a reachable tensor has."""
    gc.collect()
    if device != "cpu":
        module = getattr(torch, device)
        module.synchronize()
        return int(module.memory_allocated())
    sizes: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at some objects warns
        for thing in gc.get_objects():
            if type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout is not torch.strided:
                continue
            if thing.device.type == "cpu":
                storage = thing.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
