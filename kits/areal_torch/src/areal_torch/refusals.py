"""Refusals of what the shared training layer does not do: adapters, and routes recorded while sampling.

Knows: which parts of a spec and of a batch ask for it.
Does not know: engines; one that can do it does not call these.
"""

from __future__ import annotations

from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError
from areal_core.contract.train import ROUTED_EXPERTS, TrainSpec


def refuse_lora(spec: TrainSpec, *, engine: str) -> None:
    """Refuse to train an adapter: training all weights instead would answer another question.

    Raises:
        CapabilityError: the spec has one.
    """
    if spec.lora is not None:
        raise CapabilityError(
            f"{engine} trains all weights, not an adapter of rank {spec.lora.rank}",
            why="it does not claim `lora`",
            fix="use a backend that claims it (`areal backends`), or leave lora out",
        )


def refuse_routes(batch: Batch) -> None:
    """Refuse recorded routes: a model that routes by itself would compute other log-probs, silently.

    Raises:
        CapabilityError: the batch holds them.
    """
    if ROUTED_EXPERTS in batch.tokens:
        raise CapabilityError(
            f"this engine does not use the column {ROUTED_EXPERTS!r}",
            why="it does not claim `experts.replay`, and its router would choose again",
            fix="use a backend that claims it (`areal backends`), or drop the column to route freely",
        )
