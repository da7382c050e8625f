"""The smallest complete TrainEngine: plain PyTorch, one process, any device.

Knows: how to build one model, and how to run it forward and backward.
Does not know: other ranks, algorithms, files, or where weights go.

Written to be read: `start` puts together parts that every engine shares (`areal_core.training`);
an engine of your own differs in how it builds and cuts the model, and in `PlainModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_core.data.batch import Batch
from areal_core.training import hf, lora
from areal_core.training.device import compute_dtype, open_device, seed_everything
from areal_core.training.experts import obey_routes
from areal_core.training.export import Exporter, FolderWeights, whole
from areal_core.training.group import SingleRank
from areal_core.training.images import Vision
from areal_core.training.layout import check_layout
from areal_core.training.model import PackedModel
from areal_core.training.offload import DeviceMemory, own_memory
from areal_core.training.optimizer import Optimizer
from areal_core.training.resume import TrainingState
from areal_core.training.step import Limits
from areal_core.training.trainer import Trainer, running, started
from areal_reference.train.config import ReferenceTrainConfig


@frozen
class PlainModel:
    """A model in one piece, as `areal_core.training.step` drives it."""

    packed: PackedModel

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Run one micro-batch forward."""
        result: Mapping[str, Tensor] = self.packed(batch, outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradient."""
        torch.autograd.backward(loss)


class ReferenceTrainEngine:
    """Train a transformers model in one process. Master weights are float32; bfloat16 is autocast."""

    def __init__(self, config: ReferenceTrainConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        self.version = 0
        self._config = config or ReferenceTrainConfig()
        self._trainer: Trainer | None = None

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Load the model and make the optimizer."""
        layout = dict(spec.layout) or {"d": rank.world_size}
        check_layout(layout, rank.world_size, engine="reference", can="", fix="use the fsdp backend for several ranks")
        dtype = compute_dtype(spec.dtype)
        device = open_device(rank.device, rank.local_rank)
        seed_everything(device, spec.seed)

        hf_config = hf.load_config(spec.model_path, spec.head, images=True)
        model = hf.load_model(spec.model_path, hf_config, spec.head).to(device)
        own_memory(model)
        lora.add_adapters(model, spec)
        experts = obey_routes(model)
        parameters = lora.select_trained(model.train(), frozen=spec.optimizer is None)
        if self._config.activation_checkpointing:
            hf.recompute_activations(model)
        autocast = None if dtype is torch.float32 else dtype
        packed = PackedModel(model, spec.head, temperature=spec.temperature, autocast=autocast)

        group = SingleRank()
        optimizer = Optimizer(parameters, spec.optimizer) if spec.optimizer else None
        self._trainer = Trainer(
            model=PlainModel(packed),
            optimizer=optimizer,
            group=group,
            device=device,
            limits=Limits.of(spec, hf_config, experts, Vision.of(hf_config)),
            exporter=Exporter(
                FolderWeights(model, whole),
                spec.model_path,
                spec.dtype,
                group,
                beside=partial(lora.write_adapter, model, spec.model_path, whole, group),
            ),
            state=TrainingState(
                group=group,
                device=device,
                parameters=parameters,
                optimizer=optimizer,
                facts=hf.identity(model, spec.head, trained=spec.optimizer is not None)
                | lora.identity(model, spec.lora),
            ),
            memory=DeviceMemory(device, [*model.parameters(), *(optimizer.tensors if optimizer else ())]),
        )
        return EngineInfo(
            engine="reference",
            engine_version=str(torch.__version__),
            device=str(device),
            num_parameters=lora.num_parameters(model),
            context_length=hf.context_length(hf_config),
        )

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Make one optimizer step."""
        return running(self._trainer).train_step(batch, objective)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Add columns, without gradient."""
        return running(self._trainer).forward(batch, outputs)

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send every parameter."""
        return running(self._trainer).send_weights(sink, version)

    def save_weights(self, path: Path) -> None:
        """Write a model folder."""
        running(self._trainer).save_weights(path)

    def save_state(self, path: Path) -> None:
        """Write an exact state."""
        running(self._trainer).save_state(path, self.version)

    def begin_state(self, path: Path) -> None:
        """Copy the state out of the way, and have it written meanwhile."""
        running(self._trainer).begin_state(path, self.version)

    def state_written(self) -> bool:
        """Tell whether this rank has nothing left to write."""
        return started(self._trainer).state_written()

    def finish_state(self) -> None:
        """Wait for a state that was begun, and give it its name."""
        started(self._trainer).finish_state()

    def load_state(self, path: Path) -> None:
        """Return to an exact state."""
        self.version = running(self._trainer).load_state(path)

    def offload(self) -> None:
        """Move model and optimizer off the device."""
        started(self._trainer).offload()

    def onload(self) -> None:
        """Bring them back."""
        started(self._trainer).onload()

    def close(self) -> None:
        """Let go of model and optimizer."""
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()
