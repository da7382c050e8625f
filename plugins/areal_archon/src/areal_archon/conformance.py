"""What the Archon engine tells the conformance suite about itself.

Knows: the private place where this engine keeps its parts, and how one is made whole.
Does not know: any check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from areal_conformance.adapter import Adapter

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class ArchonWitness:
    """Gathers the parameters themselves; collective. Any: an engine, whose privates are read."""

    engine: Any

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of all parameters, whole, as a folder has them."""
        weights = self.engine._built.weights
        parts = [parameter.split(weights.whole(parameter)) for parameter in weights.parameters]
        return {name: tensor.cpu().clone() for part in parts for name, tensor in part.items()}


ADAPTER = Adapter(
    models=("qwen3", "qwen2", "llama", "qwen3_moe"),
    dtypes=("float32", "bfloat16"),
    layouts=("d2", "t2", "c2", "p2", "d4", "d2t2", "d2c2", "d2p2", "t2c2", "t2p2", "c2p2"),
    options={"memory.activation_checkpointing": {"activation_checkpointing": "full", "wrap": "layer"}},
    witness=ArchonWitness,
)
"""Layouts with e need a model with experts, and every layout here is checked with the first model: see the tests."""
