"""FSDP2 as a TrainEngine: one rank of any number, gloo on the CPU, NCCL on GPUs, HCCL on NPUs.

Knows: the process group, the sharded model, when gradients are reduced.
Does not know: algorithms, micro-batches, files; `areal_core.training` does all that for every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from areal_core.contract.errors import TrainError
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_core.data.batch import Batch
from areal_core.training import hf, step
from areal_core.training.device import DISTRIBUTED_BACKENDS, compute_dtype, open_device, seed_everything
from areal_core.training.export import Exporter
from areal_core.training.group import ProcessRanks, agree
from areal_core.training.layout import check_layout
from areal_core.training.model import PackedModel
from areal_core.training.optimizer import Optimizer
from areal_core.training.resume import TrainingState
from areal_fsdp import sharding
from areal_fsdp.config import FSDPConfig

_CLOSE_TIMEOUT_S = 10.0


class FSDPEngine:
    """Train a transformers model sharded over ranks. Master weights are float32 shards."""

    def __init__(self, config: FSDPConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        self.version = 0
        self._config = config or FSDPConfig()
        self._model: FSDPModule | None = None
        self._optimizer: Optimizer | None = None

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Join the process group, shard the model, make the optimizer."""
        layout = dict(spec.layout) or {"d": rank.world_size}
        check_layout(layout, rank.world_size, engine="fsdp", can="d", fix="use archon or megatron for t, p, c and e")
        dtype = compute_dtype(spec.dtype)
        self._device = open_device(rank.device, rank.local_rank)
        dist.init_process_group(
            DISTRIBUTED_BACKENDS[rank.device],
            init_method=rank.init_method,
            rank=rank.rank,
            world_size=rank.world_size,
            timeout=timedelta(seconds=rank.timeout_s),
        )
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=rank.timeout_s))
        self._group = ProcessRanks(rank=rank.rank, size=rank.world_size, control=control)
        seed_everything(self._device, spec.seed + rank.rank)
        try:
            return self._build(spec, rank, dtype)
        except BaseException:
            self.close()
            raise

    def _build(self, spec: TrainSpec, rank: RankContext, dtype: torch.dtype) -> EngineInfo:
        source: list[hf.Model] = []

        def load() -> None:
            self._hf_config = hf.load_config(spec.model_path, spec.head)
            if rank.rank == 0:
                source.append(hf.load_model(spec.model_path, self._hf_config, spec.head))

        agree(self._group, load)
        model = hf.empty_model(self._hf_config, spec.head)
        model.train().requires_grad_(spec.optimizer is not None)
        if self._config.activation_checkpointing:
            hf.recompute_activations(model)
        mesh = init_device_mesh(rank.device, (rank.world_size,), mesh_dim_names=("data",))
        packed = PackedModel(model, spec.head, temperature=spec.temperature)
        self._model = sharding.shard(packed, mesh, dtype, self._config)
        offloaded = self._config.cpu_offload and rank.device != "cpu"
        sharding.fill(packed, source[0] if source else None, self._device, offloaded=offloaded)
        source.clear()
        parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._optimizer = Optimizer(parameters, spec.optimizer) if spec.optimizer else None
        self._exporter = Exporter(model, spec.model_path, spec.dtype, self._group, sharding.gather)
        self._state = TrainingState(
            group=self._group,
            device=self._device,
            parameters=parameters,
            optimizer=self._optimizer,
            facts=hf.identity(model, spec.head, trained=spec.optimizer is not None),
            place=sharding.place,
        )
        self._limits = step.Limits(
            head=spec.head,
            max_tokens=spec.max_tokens_per_microbatch,
            context_length=hf.context_length(self._hf_config),
            vocab_size=self._hf_config.get_text_config().vocab_size,
        )
        return EngineInfo(
            engine="fsdp",
            engine_version=torch.__version__,
            device=str(self._device),
            num_parameters=sum(parameter.numel() for parameter in parameters.values()),
            context_length=self._limits.context_length,
            data_rank=rank.rank,
            data_size=rank.world_size,
            details={"wrap": self._config.wrap, "backend": DISTRIBUTED_BACKENDS[rank.device]},
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
        model = self._started()
        assert isinstance(model, torch.nn.Module)
        result: Mapping[str, Tensor] = model(batch, outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradient. FSDP averages over ranks; the factor makes it a sum."""
        model = self._started()
        model.set_requires_gradient_sync(last or self._config.reduce_every_microbatch)
        model.set_is_last_backward(last)
        torch.autograd.backward(loss * self._group.size)

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send every parameter, gathered one bucket at a time."""
        return self._exporter.send(sink, version)

    def save_weights(self, path: Path) -> None:
        """Write a model folder, gathered one file at a time."""
        self._exporter.save(Path(path))

    def save_state(self, path: Path) -> None:
        """Write an exact state, each rank its shards."""
        self._state.save(Path(path), self.version)

    def load_state(self, path: Path) -> None:
        """Return to an exact state, written by any number of ranks."""
        self.version = self._state.load(Path(path))

    def close(self) -> None:
        """Leave the process group, together if the others still answer."""
        group = self.__dict__.get("_group")
        self.__dict__ = {"version": self.version, "_config": self._config, "_model": None, "_optimizer": None}
        if group is not None:
            _leave(group)

    def _started(self) -> FSDPModule:
        if self._model is None:
            raise TrainError("the engine holds no model", why="it was not started, or was closed")
        return self._model


def _leave(group: ProcessRanks) -> None:
    """Destroy the process group. gloo aborts now and then when ranks leave one by one, so they meet first."""
    try:
        dist.monitored_barrier(group.control, timeout=timedelta(seconds=_CLOSE_TIMEOUT_S))
    except RuntimeError:
        pass  # a rank is dead or stuck in a collective, which the supervisor reports; leave alone
    finally:
        dist.destroy_process_group()
