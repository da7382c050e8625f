"""Archon as a TrainEngine: its own decoder over data, tensor, context, expert and pipeline ranks.

Knows: the order in which a rank starts and what it is then made of.
Does not know: algorithms, micro-batches, files; `areal_torch` does all that for every engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from areal_archon import building, fitting, float8, sharding
from areal_archon.config import ArchonConfig
from areal_archon.ranks import arrange, check_expert_degree
from areal_archon.schedules import Schedule
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_torch import hf
from areal_torch.device import collective_backend, compute_dtype, open_device, seed_everything
from areal_torch.engine import TrainerEngine
from areal_torch.flops import peak_details
from areal_torch.group import ProcessRanks, agree
from areal_torch.layout import check_layout, coordinates
from areal_torch.process_group import join
from areal_torch.refusals import refuse_lora


class ArchonEngine(TrainerEngine):
    """Train a decoder cut along any axis. Master weights are float32 shards."""

    def __init__(self, config: ArchonConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        super().__init__()
        self._config = config or ArchonConfig()
        self.built: building.Built | None = None
        """This rank's part of the model, once started."""

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
        self.group = join(rank, layout)
        seed_everything(device, spec.seed + coordinates(layout, rank.rank)["d"])
        try:
            return self._start(self.group, spec, rank, layout, schedule, dtype, device)
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
        found: list[building.ArchonBlueprint] = []
        agree(group, lambda: found.append(building.ArchonBlueprint.read(spec, layout, schedule)))
        (blueprint,) = found
        float8.check_fits(self._config, blueprint.shape, layout)
        ranks = arrange(layout, rank)
        built, fill = building.build(blueprint, spec, ranks, schedule, dtype, device, self._config)
        agree(group, fill)
        parameters: dict[str, Tensor] = {name: held.tensor for name, held in built.held.items()}
        self.built = built
        self.trainer = blueprint.trainer(
            spec,
            group,
            device,
            model=built.model,
            weights=built.weights,
            parameters=parameters,
            boxes=sharding.boxes(built.held),
            resident=parameters.values(),
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
                "backend": collective_backend(rank.device),
                "family": blueprint.shape.family,
                "schedule": "" if schedule is None else schedule.name,
                **peak_details(spec, rank, blueprint.config, device),
            },
        )

    @contextmanager
    def around_pass(self) -> Iterator[None]:
        """Let every parameter be its shard again after a pass, which sending and saving read."""
        try:
            yield
        finally:
            if self.built is not None:
                self.built.reshard()

    def close(self) -> None:
        """Let go of the model; leave the process group, together if the others still answer."""
        super().close()
        self.built = None
