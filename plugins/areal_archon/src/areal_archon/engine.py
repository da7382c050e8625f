"""Archon as a TrainEngine: its own decoder over data, tensor, context, expert and pipeline ranks.

Knows: the order in which a rank starts and what it is then made of.
Does not know: algorithms, micro-batches, files; `areal_torch` does all that for every engine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_archon import building, fitting, float8, sharding
from areal_archon.config import ArchonConfig
from areal_archon.ranks import arrange, check_expert_degree
from areal_archon.schedules import Schedule
from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_torch import hf
from areal_torch.device import DISTRIBUTED_BACKENDS, compute_dtype, open_device, seed_everything
from areal_torch.engine import TrainerEngine
from areal_torch.export import Exporter
from areal_torch.group import ProcessRanks, agree
from areal_torch.layout import check_layout
from areal_torch.offload import DeviceMemory
from areal_torch.optimizer import Optimizer
from areal_torch.pieces import Box
from areal_torch.process_group import join, leave
from areal_torch.refusals import refuse_lora
from areal_torch.resume import TrainingState
from areal_torch.step import Limits
from areal_torch.trainer import Trainer, running


class ArchonEngine(TrainerEngine):
    """Train a decoder cut along any axis. Master weights are float32 shards."""

    def __init__(self, config: ArchonConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        super().__init__()
        self._config = config or ArchonConfig()
        self._group: ProcessRanks | None = None
        self._built: building.Built | None = None

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Refuse what cannot be, join the process group, build this rank's part of the model."""
        layout = dict(spec.layout) or {"d": rank.world_size}
        check_layout(layout, rank.world_size, engine="archon", can="dtpce", fix="")
        check_expert_degree(layout)
        fitting.check_options(layout, self._config)
        schedule = fitting.schedule_of(layout, self._config)
        refuse_lora(spec, engine="archon")
        float8.check_options(self._config, schedule)
        dtype = compute_dtype(spec.dtype)
        device = open_device(rank.device, rank.local_rank)
        float8.check_device(self._config, device)
        self._group = join(rank, layout)
        seed_everything(device, spec.seed + rank.rank)
        try:
            return self._start(self._group, spec, rank, layout, schedule, dtype, device)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        group: ProcessRanks,
        spec: TrainSpec,
        rank: RankContext,
        layout: dict[str, int],
        schedule: Schedule | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> EngineInfo:
        found: list[building.Blueprint] = []
        agree(group, lambda: found.append(building.Blueprint.read(spec, layout, schedule)))
        (blueprint,) = found
        float8.check_fits(self._config, blueprint.shape, layout)
        ranks = arrange(layout, rank)
        built, fill = building.build(blueprint, spec, ranks, schedule, dtype, device, self._config)
        agree(group, fill)
        boxes = sharding.boxes(built.held)

        def box(tensor: Tensor) -> Box:
            return boxes[id(tensor)]

        parameters: dict[str, Tensor] = {name: held.tensor for name, held in built.held.items()}
        optimizer = Optimizer(parameters, spec.optimizer, box=box) if spec.optimizer else None
        self._built = built
        self._trainer = Trainer(
            model=built.model,
            optimizer=optimizer,
            group=group,
            device=device,
            limits=Limits.of(spec, blueprint.config, blueprint.experts),
            exporter=Exporter(built.weights, spec.model_path, spec.dtype, group),
            state=TrainingState(
                group=group,
                device=device,
                parameters=parameters,
                optimizer=optimizer,
                facts=blueprint.identity(spec.head, trained=spec.optimizer is not None),
                box=box,
            ),
            memory=DeviceMemory(device, [*parameters.values(), *(optimizer.tensors if optimizer else ())]),
        )
        return EngineInfo(
            engine="archon",
            engine_version=str(torch.__version__),
            device=str(device),
            num_parameters=blueprint.num_parameters,
            context_length=hf.context_length(blueprint.config),
            data_rank=ranks.place["d"],
            data_size=ranks.degrees["d"],
            details={
                "backend": DISTRIBUTED_BACKENDS[rank.device],
                "family": blueprint.shape.family,
                "schedule": "" if schedule is None else schedule.name,
            },
        )

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Make one optimizer step."""
        trainer = running(self._trainer)
        try:
            return trainer.train_step(batch, objective)
        finally:
            self._reshard()

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Add columns, without gradient."""
        trainer = running(self._trainer)
        try:
            return trainer.forward(batch, outputs)
        finally:
            self._reshard()

    def close(self) -> None:
        """Leave the process group, together if the others still answer."""
        super().close()
        self._built = None
        group, self._group = self._group, None
        if group is not None:
            leave(group)

    def _reshard(self) -> None:
        """Let every parameter be its shard again, which sending and saving read."""
        if self._built is not None:
            self._built.reshard()
