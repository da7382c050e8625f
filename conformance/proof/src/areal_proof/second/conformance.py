"""Adapters of the second implementations.

Knows: their options, and how their weights are read by another road.
Does not know: any check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from areal_conformance.adapter import Adapter, Threshold, Variant

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class _HeldTensors:
    """Reads the engine's own table of weights; of adapters a trainer shows the merged ones."""

    engine: Any  # Any: the engine's module imports torch

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of the weights in use, on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.engine.weights_in_use().items()}


class _SpoiledBytes:
    """Flips one bit in the middle of the bytes of every finished tensor. Any: the transport's module imports torch."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._fired = 0

    def inject(self) -> None:
        """Spoil what the controller's end holds."""
        for shelf in self._transport.shelves.values():
            for data in shelf.data.values():
                if data:
                    self._spoil(data)
                    self._fired += 1

    def heal(self) -> None:
        """Do nothing: the version is lost."""

    def fired(self) -> int:
        """Return how many tensors were spoiled."""
        return self._fired

    def _spoil(self, data: bytearray) -> None:
        data[len(data) // 2] ^= 4


class _LostBytes(_SpoiledBytes):
    """Cuts every finished tensor in half."""

    def _spoil(self, data: bytearray) -> None:
        del data[len(data) // 2 :]


def _activations(engine: Any) -> int:
    """Return how often a step computes an activation."""
    from areal_torch.testing.operations import operations_of_step

    return operations_of_step(engine)["silu"]


TRAIN = Adapter(
    variants={
        "recomputed": Variant(
            options={"activation_checkpointing": True}, layouts=("d2", "t2", "d2t2"), shows=_activations
        )
    },
    models=("qwen3", "qwen2", "llama"),
    architectures=("qwen3_moe",),
    traits=("biases",),
    dtypes=("float32", "bfloat16"),
    layouts=("d2", "t2", "d2t2", "d4"),
    thresholds=(Threshold(counts="logits", at=320, place="areal_proof.second.train.columns:CHUNK_LOGITS"),),
    options={"memory.activation_checkpointing": {"activation_checkpointing": True}},
    witness=_HeldTensors,
)

INFER = Adapter(
    thresholds=(Threshold(counts="prompt", at=48), Threshold(counts="length", at=32)),  # it has none, and is slow
    models=("qwen3", "qwen2", "llama", "qwen3_moe", "qwen2_5_vl"),
    traits=("biases",),
    dtypes=("float32", "bfloat16"),
    layouts=("t2", "t4", "p2", "t2p2"),
    options={"tools.parse": {"tool_parser": "hermes"}},
    witness=_HeldTensors,
)
SCHEDULER = Adapter()
TRANSPORT = Adapter(faults=lambda transport: {"flip": _SpoiledBytes(transport), "truncate": _LostBytes(transport)})
WORKFLOW = Adapter(options={"adapters": {"asks": "a"}})
