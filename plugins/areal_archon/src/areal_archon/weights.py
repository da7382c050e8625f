"""How the ranks of one stage make a parameter whole.

Knows: the order of gathering: d and c, then t, then e.
Does not know: stages, names in a folder (`areal_torch.stage_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_archon.ranks import Ranks
from areal_archon.sharding import Held
from areal_torch.parameters import Parameter
from areal_torch.pieces import joined


@frozen(kw_only=True, eq=False)
class Gathering:
    """The `gather` of `StageWeights`."""

    held: Mapping[str, Held]
    ranks: Ranks

    def __call__(self, parameter: Parameter, dtype: torch.dtype) -> Tensor:
        """Return one parameter of this stage whole, on every rank of the stage. Collective."""
        sharded: Any = self.held[parameter.name].tensor.detach().to(dtype)  # Any: a DTensor, not typed throughout
        part: Tensor = sharded.full_tensor()
        if parameter.cut is not None:
            part = joined(part, parameter.cut, parameter.shape[parameter.cut], self.ranks.tensor)
        if parameter.stacked:
            part = joined(part, 0, parameter.shape[0], self.ranks.expert)
        return part
