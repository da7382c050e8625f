"""What a run changes in the process of its controller, and puts back: threads of torch, collections of garbage.

What a controller computes of a batch is small: a second thread costs more at its barriers than it computes. What is in
flight is some hundred objects an episode, none of them garbage, which collections as often as Python's own walk again
and again.

Knows: settings that a whole process has.
Does not know: worker processes, which have threads of their own, or what runs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_GARBAGE = (50_000, 20, 100)
"""New objects before a collection, and how many collections make one of the next generation."""


@contextmanager
def as_controller() -> Iterator[None]:
    """Compute on one thread, and collect garbage seldom, in the block; then as before. Garbage may be turned off."""
    num_threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    torch.set_num_threads(1)
    if thresholds[0]:
        gc.set_threshold(*map(max, thresholds, _GARBAGE))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        torch.set_num_threads(num_threads)
