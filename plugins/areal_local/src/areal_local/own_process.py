"""What a run changes in the process of its controller, and puts back: torch's threads, collections of garbage, and how
long a thread may keep the interpreter.

What a controller computes of a batch is small: a second thread costs more at its barriers than it computes. What is in
flight is some hundred objects an episode, none of them garbage, which collections as often as Python's own walk again
and again.

Knows: settings that a whole process has.
Does not know: worker processes, which have threads of their own, or what runs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_GARBAGE = (50_000, 20, 100)
"""New objects before a collection, and how many collections make one of the next generation."""
_TURN_S = 0.001
"""How long the event loop waits for a thread that computes in Python, such as the one that writes episodes."""


@contextmanager
def as_controller() -> Iterator[None]:
    """Compute on one thread, collect garbage seldom and change threads often in the block; then as before.

    A collector that is turned off stays off.
    """
    num_threads, thresholds, turn_s = torch.get_num_threads(), gc.get_threshold(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(min(turn_s, _TURN_S))
    if thresholds[0]:
        gc.set_threshold(*map(max, thresholds, _GARBAGE))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(turn_s)
        torch.set_num_threads(num_threads)
