"""Weights made whole under the names of a model folder, from the parts that ranks and stages hold.

Knows: the order of gathering: d and c, then t, then e, then from the stage that has it to the others.
Does not know: buckets or sinks; `areal_torch.export` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from areal_archon.models.names import Parameter
from areal_archon.ranks import Ranks
from areal_archon.sharding import Held
from areal_torch.pieces import joined
from areal_torch.shape import ModelShape


@frozen(kw_only=True, eq=False)
class ShardedWeights:
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
        return {name: each.folder_shape for each in self.parameters for name in each.folder_names}

    def wholes(self, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
        """Yield one parameter at a time, as the tensors a folder has for it."""
        for parameter in self.parameters:
            yield parameter.split(self.whole(parameter, dtype))

    def whole(self, parameter: Parameter, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one parameter whole, on every rank. Collective."""
        owner = self.owners[parameter.name]
        if self.ranks.place["p"] == owner:
            tensor = self._gathered(self.held[parameter.name], dtype)
        else:
            tensor = torch.empty(parameter.shape, dtype=dtype, device=self.device)
        if self.ranks.pipeline is not None:
            tensor = tensor.contiguous()
            dist.broadcast(tensor, group=self.ranks.pipeline, group_src=owner)
        return tensor

    def _gathered(self, held: Held, dtype: torch.dtype) -> Tensor:
        sharded: Any = held.tensor.detach().to(dtype)  # Any: a DTensor, whose methods are not all typed
        part: Tensor = sharded.full_tensor()
        entry, shape = held.parameter.entry, held.parameter.shape
        if entry.tensor_dim is not None:
            part = joined(part, entry.tensor_dim, shape[entry.tensor_dim], self.ranks.tensor)
        if entry.stacked:
            part = joined(part, 0, shape[0], self.ranks.expert)
        return part
