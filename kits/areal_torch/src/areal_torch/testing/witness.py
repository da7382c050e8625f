"""The witness of engines whose model lies in stages: what their ranks compute with, put together again.

Knows: that such an engine keeps its part in `built`, with `StageWeights` in it.
Does not know: any engine, any check. Imports nothing heavy: adapters are read where there is no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class StageWitness:
    """Gathers the parameters themselves, not what is sent of them; collective. Any: an engine with `built.weights`."""

    engine: Any

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of all parameters, whole, as a folder has them."""
        weights = self.engine.built.weights
        parts = [parameter.split(weights.whole(parameter)) for parameter in weights.parameters]
        return {name: tensor.cpu().clone() for part in parts for name, tensor in part.items()}
