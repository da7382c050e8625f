"""Weights made whole under the names of a model folder, from the stages that pipeline ranks hold.

Knows: which stage has a parameter, and that every rank gets it from there.
Does not know: how the ranks of one stage share a parameter (`gather`); buckets or sinks (`export`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from areal_torch.parameters import Parameter
from areal_torch.shape import ModelShape

Gather = Callable[[Parameter, torch.dtype], Tensor]
"""Makes a parameter whole on every rank of the stage that has it. Collective over them."""


@frozen(kw_only=True, eq=False)
class StageWeights:
    """The `Weights` of an `Exporter`. `owners` tells for each parameter the pipeline rank whose stage has it.

    `pipeline` is None, or has one rank, where there is one stage; `stage` is this rank's number in it.
    """

    shape: ModelShape
    parameters: Sequence[Parameter]
    owners: Mapping[str, int]
    stage: int
    pipeline: dist.ProcessGroup | None
    device: torch.device
    gather: Gather

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
        owner = self.owners[parameter.name]
        if self.stage == owner:
            tensor = self.gather(parameter, dtype).contiguous()
        else:
            tensor = torch.empty(parameter.shape, dtype=dtype, device=self.device)
        if self.pipeline is not None and self.pipeline.size() > 1:
            dist.broadcast(tensor, group=self.pipeline, group_src=owner)
        return tensor
