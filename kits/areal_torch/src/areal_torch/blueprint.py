"""What every rank knows of a whole model before any of it is built, and the trainer of the part that it builds.

For engines that build models anew, in stages cut over ranks: a subclass adds what it needs and reads it all.

Knows: which facts of a model must agree between ranks, states and recorded routes.
Does not know: how a stage is built or cut.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.train import Head, TrainSpec
from areal_torch import step
from areal_torch.experts import Experts
from areal_torch.export import Exporter, Weights
from areal_torch.group import RankGroup
from areal_torch.offload import DeviceMemory
from areal_torch.optimizer import Optimizer
from areal_torch.parameters import Parameter
from areal_torch.pieces import Box
from areal_torch.resume import TrainingState
from areal_torch.shape import ModelShape
from areal_torch.trainer import Trainer
from areal_torch.weight_files import WeightFiles


@frozen(kw_only=True, eq=False)
class Blueprint:
    """The whole model on paper. Any: a transformers configuration."""

    config: Any
    shape: ModelShape
    parameters: Sequence[Parameter]
    files: WeightFiles

    @property
    def experts(self) -> Experts:
        """Return what recorded routes of this model must be like."""
        shape = self.shape
        return Experts(num_layers=len(shape.mixtures), num_experts=shape.experts, per_token=shape.experts_per_token)

    @property
    def num_parameters(self) -> int:
        """Return how many numbers the whole model has."""
        return sum(prod(parameter.shape) for parameter in self.parameters)

    def identity(self, head: Head, *, trained: bool) -> dict[str, Any]:
        """Return what a saved state must have in common with the model it is loaded into; json."""
        shapes = [[parameter.name, list(parameter.shape)] for parameter in self.parameters]
        digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
        return {"architecture": self.shape.architecture, "head": str(head), "shapes": digest, "trained": trained}

    def trainer(
        self,
        spec: TrainSpec,
        group: RankGroup,
        device: torch.device,
        *,
        model: step.Model | step.Pipeline,
        weights: Weights,
        parameters: Mapping[str, Tensor],
        boxes: Mapping[int, Box],
        resident: Iterable[Tensor],
    ) -> Trainer:
        """Put together what this rank built.

        Args:
            parameters: what is trained and saved, by the names of the whole model.
            boxes: where each lies in its parameter, by the identity of the tensor.
            resident: all that stays on the device between two steps, except the optimizer's moments.
        """

        def box(tensor: Tensor) -> Box:
            return boxes[id(tensor)]

        optimizer = Optimizer(parameters, spec.optimizer, box=box) if spec.optimizer else None
        return Trainer(
            model=model,
            optimizer=optimizer,
            group=group,
            device=device,
            limits=step.Limits.of(spec, self.config, experts=self.experts),
            exporter=Exporter(weights, spec.model_path, spec.dtype, group),
            state=TrainingState(
                group=group,
                device=device,
                parameters=parameters,
                optimizer=optimizer,
                facts=self.identity(spec.head, trained=spec.optimizer is not None),
                box=box,
            ),
            memory=DeviceMemory(device, [*resident, *(optimizer.tensors if optimizer else ())]),
        )
