"""Which operations a step of an engine makes: what options do that change no number.

    made = operations_of_step(engine)
    made["reduce_scatter"], made["silu"], made["silu_backward"]

Knows: torch's dispatcher, collectives among its operations.
Does not know: what an engine should do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from areal_core.contract.train import TrainEngine
from areal_torch.testing.batches import make_batch
from areal_torch.testing.objectives import PolicyGradient

SHAPES = ((2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2))
"""Prompt and generated tokens of the sequences of the step, on every rank."""
_ALIKE = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


class Operations(TorchDispatchMode):
    """Counts operations by name, without overloads."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.made = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count and make one. Any: whatever operations take."""
        name = str(func.overloadpacket.__name__)
        self.made[_ALIKE.get(name, name)] += 1
        return func(*args, **(kwargs or {}))


def operations_of_step(engine: TrainEngine) -> Counter[str]:
    """Make a step and return which operations this rank made. Collective."""
    batch = make_batch(SHAPES)
    batch = batch.with_tokens(advantages=torch.linspace(-1.0, 1.0, batch.num_tokens))
    operations = Operations()
    with operations:
        engine.train_step(batch, PolicyGradient())
    return operations.made
