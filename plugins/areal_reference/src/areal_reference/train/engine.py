"""The smallest complete TrainEngine: plain PyTorch, one process, any device.

Knows: how to build one model and one optimizer, and which shared part does each call.
Does not know: other ranks, algorithms, or where weights go.

Written to be read: an engine of your own has the same members, and differs where it cuts the
model into pieces. Everything else is in `areal_core.training`, which every engine shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from areal_core.contract.errors import TrainError
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_core.data.batch import Batch
from areal_core.training import hf, step
from areal_core.training.device import compute_dtype, open_device, seed_everything
from areal_core.training.export import Exporter, whole
from areal_core.training.group import SingleRank
from areal_core.training.layout import check_layout
from areal_core.training.model import PackedModel
from areal_core.training.optimizer import Optimizer
from areal_core.training.resume import TrainingState
from areal_reference.train.config import ReferenceTrainConfig


class ReferenceTrainEngine:
    """Train a transformers model in one process. Master weights are float32; bfloat16 is autocast."""

    def __init__(self, config: ReferenceTrainConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        self.version = 0
        self._config = config or ReferenceTrainConfig()
        self._group = SingleRank()
        self._model: PackedModel | None = None
        self._optimizer: Optimizer | None = None

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Load the model and make the optimizer."""
        layout = dict(spec.layout) or {"d": rank.world_size}
        check_layout(layout, rank.world_size, engine="reference", can="", fix="use the fsdp backend for several ranks")
        dtype = compute_dtype(spec.dtype)
        self._device = open_device(rank.device, rank.local_rank)
        seed_everything(self._device, spec.seed)
        hf_config = hf.load_config(spec.model_path, spec.head)
        model = hf.load_model(spec.model_path, hf_config, spec.head).to(self._device)
        model.train().requires_grad_(spec.optimizer is not None)
        if self._config.activation_checkpointing:
            hf.recompute_activations(model)
        autocast = None if dtype is torch.float32 else dtype
        parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._model = PackedModel(model, spec.head, temperature=spec.temperature, autocast=autocast)
        self._optimizer = Optimizer(parameters, spec.optimizer) if spec.optimizer else None
        self._exporter = Exporter(model, spec.model_path, spec.dtype, self._group, whole)
        self._limits = step.Limits(
            head=spec.head,
            max_tokens=spec.max_tokens_per_microbatch,
            context_length=hf.context_length(hf_config),
            vocab_size=hf_config.get_text_config().vocab_size,
        )
        self._state = TrainingState(
            group=self._group,
            device=self._device,
            parameters=parameters,
            optimizer=self._optimizer,
            facts=hf.identity(model, spec.head, trained=spec.optimizer is not None),
        )
        return EngineInfo(
            engine="reference",
            engine_version=torch.__version__,
            device=str(self._device),
            num_parameters=sum(parameter.numel() for parameter in parameters.values()),
            context_length=self._limits.context_length,
        )

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Make one optimizer step."""
        if self._optimizer is None:
            raise TrainError("train_step on a frozen role", why="its spec has no optimizer", fix="give it one")
        return step.train_step(self, self._optimizer, self._group, self._device, self._limits, batch, objective)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Add columns, without gradient."""
        return step.forward(self, self._group, self._device, self._limits, batch, outputs)

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Run the model on one micro-batch. Called by `areal_core.training.step`."""
        result: Mapping[str, Tensor] = self._started()(batch, outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradient. Called by `areal_core.training.step`."""
        torch.autograd.backward(loss)

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send every parameter."""
        return self._exporter.send(sink, version)

    def save_weights(self, path: Path) -> None:
        """Write a model folder."""
        self._exporter.save(Path(path))

    def save_state(self, path: Path) -> None:
        """Write an exact state."""
        self._state.save(Path(path), self.version)

    def load_state(self, path: Path) -> None:
        """Return to an exact state."""
        self.version = self._state.load(Path(path))

    def close(self) -> None:
        """Let go of model and optimizer."""
        self.__dict__ = {"version": self.version, "_config": self._config, "_model": None}

    def _started(self) -> PackedModel:
        if self._model is None:
            raise TrainError("the engine holds no model", why="it was not started, or was closed")
        return self._model
