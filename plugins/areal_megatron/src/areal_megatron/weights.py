"""How the ranks of one stage make a parameter whole.

Knows: the order of gathering: over ranks that share a master, that share a tensor, that share experts.
Does not know: stages, names in a folder (`areal_torch.stage_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from areal_megatron.ranks import Ranks
from areal_megatron.sharding import Held
from areal_torch.parameters import Parameter
from areal_torch.pieces import joined


@frozen(kw_only=True, eq=False)
class Gathering:
    """The `gather` of `StageWeights`. `num_experts` are the model's."""

    held: Mapping[str, Held]
    ranks: Ranks
    num_experts: int
    device: torch.device

    def __call__(self, parameter: Parameter, dtype: torch.dtype) -> Tensor:
        """Return one parameter of this stage whole, on every rank of the stage. Collective."""
        tensor = torch.empty(parameter.shape, dtype=dtype, device=self.device)
        if parameter.name in self.held:
            tensor.copy_(self._joined(self.held[parameter.name], dtype))
        if parameter.expert is not None and self.ranks.expert.size() > 1:
            holder = parameter.expert // (self.num_experts // self.ranks.expert.size())
            dist.broadcast(tensor, group=self.ranks.expert, group_src=holder)
        return tensor

    def _joined(self, held: Held, dtype: torch.dtype) -> Tensor:
        """Return a parameter whole from the masters of the ranks that share it."""
        parameter, part = held.parameter, held.joined(dtype)
        if parameter.cut is None:
            return part
        sharing = self.ranks.cutting(of_expert=parameter.expert is not None)
        return joined(part, parameter.cut, parameter.shape[parameter.cut], sharing)
