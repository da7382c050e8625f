"""Weights made whole under the names of a model folder, from the boxes that ranks and stages hold.

Knows: the order of gathering: over ranks that share a master, that share a tensor, that share experts, then from
the stage that has it.
Does not know: buckets or sinks; `areal_torch.export` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from areal_megatron.names import Parameter
from areal_megatron.ranks import Ranks
from areal_megatron.sharding import Held
from areal_torch.pieces import joined
from areal_torch.shape import ModelShape


@frozen(kw_only=True, eq=False)
class MegatronWeights:
    """The `Weights` of an `Exporter`. `owners` tells for each parameter the pipeline rank whose stage has it."""

    shape: ModelShape
    parameters: Sequence[Parameter]
    held: Mapping[str, Held]
    owners: Mapping[str, int]
    ranks: Ranks
    device: torch.device

    @property
    def architecture(self) -> str:
        """Return the transformers class of the folder."""
        return self.shape.architecture

    @property
    def tied(self) -> Mapping[str, str]:
        """Return that the head is the embedding, if it is."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.shape.tied else {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a folder's tensors."""
        return {part.name: part.shape for each in self.parameters for part in each.parts}

    def wholes(self, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors a folder has for each parameter, one at a time: a bucket is cut between any two."""
        for parameter in self.parameters:
            for name, tensor in parameter.split(self.whole(parameter, dtype)).items():
                yield {name: tensor}

    def whole(self, parameter: Parameter, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one parameter whole, on every rank. Collective."""
        owner, ranks = self.owners[parameter.name], self.ranks
        tensor = torch.empty(parameter.view, dtype=dtype, device=self.device)
        if ranks.place["p"] == owner:
            if parameter.name in self.held:
                tensor.copy_(self._joined(self.held[parameter.name], dtype))
            if parameter.expert is not None and ranks.expert.size() > 1:
                holder = parameter.expert // (self.shape.experts // ranks.expert.size())
                dist.broadcast(tensor, group=ranks.expert, group_src=holder)
        if ranks.pipeline.size() > 1:
            dist.broadcast(tensor, group=ranks.pipeline, group_src=owner)
        return tensor

    def _joined(self, held: Held, dtype: torch.dtype) -> Tensor:
        """Return a parameter whole from the masters of the ranks that share it."""
        entry, part = held.parameter.entry, held.joined(dtype)
        if entry.cut is None:
            return part
        return joined(part, entry.cut, held.parameter.view[entry.cut], self.ranks.cutting(of_expert=entry.of_expert))
