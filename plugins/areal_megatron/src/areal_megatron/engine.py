"""Megatron-Core as a TrainEngine: its GPTModel over data, tensor, pipeline, context and expert ranks.

Knows: the order in which a rank starts and what it is then made of.
Does not know: algorithms, micro-batches, files; `areal_torch` does all that for every engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Objective, RankContext, TrainReport, TrainSpec
from areal_megatron import building, fitting, ranks, sharding
from areal_megatron.config import MegatronConfig
from areal_megatron.layers import torch_computes
from areal_megatron.library import VERSION, quiet
from areal_torch import hf
from areal_torch.device import collective_backend, compute_dtype, open_device, seed_everything
from areal_torch.engine import TrainerEngine
from areal_torch.flops import peak_details
from areal_torch.group import ProcessRanks, agree
from areal_torch.layout import check_layout, coordinates
from areal_torch.process_group import join
from areal_torch.refusals import refuse_lora

logger = logging.getLogger("areal.megatron")

_INSTALL = "For faster ones: pip install transformer-engine[pytorch]"


class MegatronEngine(TrainerEngine):
    """Train a Megatron-Core model. Masters are float32; layers compute in the dtype of the run."""

    def __init__(self, config: MegatronConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        super().__init__()
        self._config = config or MegatronConfig()
        self._device = "cpu"
        self.built: building.Built | None = None
        """This rank's part of the model, once started."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Refuse what cannot be, join the process group, build this rank's part of the model."""
        layout = dict(spec.layout) or {"d": rank.world_size}
        check_layout(layout, rank.world_size, engine="megatron", can="dtpce", fix="")
        ranks.check_expert_degree(layout, self._config)
        fitting.check_options(layout, self._config)
        refuse_lora(spec, engine="megatron")
        dtype = compute_dtype(spec.dtype)
        device = open_device(rank.device, rank.local_rank)
        self._device = device.type
        if device.type != "cpu" and torch_computes(device.type):
            logger.warning("Transformer Engine is not installed: layers of plain torch compute. %s", _INSTALL)
        self.group = join(rank, layout)
        seed_everything(device, spec.seed + coordinates(layout, rank.rank)["d"])
        try:
            with self.around_pass():
                return self._start(self.group, spec, rank, layout, dtype, device)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        group: ProcessRanks,
        spec: TrainSpec,
        rank: RankContext,
        layout: dict[str, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> EngineInfo:
        found: list[building.MegatronBlueprint] = []
        agree(group, lambda: found.append(building.MegatronBlueprint.read(spec, layout, self._config, device.type)))
        (blueprint,) = found
        arranged = ranks.arrange(layout, rank, self._config)
        built, fill = building.build(blueprint, spec, arranged, dtype, device, self._config)
        agree(group, fill)
        self.built = built
        self.trainer = blueprint.trainer(
            spec,
            group,
            device,
            model=built.model,
            weights=built.weights,
            parameters={name: held.master for name, held in built.held.items()},
            boxes=sharding.boxes(built.held),
            resident=built.tensors,
        )
        return EngineInfo(
            engine="megatron",
            engine_version=VERSION,
            device=str(device),
            num_parameters=blueprint.num_parameters,
            context_length=hf.context_length(blueprint.config),
            data_rank=arranged.place["d"],
            data_size=arranged.degrees["d"],
            details={
                "backend": collective_backend(rank.device),
                "family": blueprint.shape.family,
                "layers": "local" if torch_computes(device.type) else "transformer_engine",
                **peak_details(spec, rank, blueprint.config, device),
            },
        )

    @contextmanager
    def around_pass(self) -> Iterator[None]:
        """Call Megatron within. On a CPU answer for the GPU that it takes for granted; on a GPU do no such thing."""
        with ExitStack() as stack:
            stack.enter_context(quiet())
            if self._device == "cpu":
                from areal_megatron.testing.host import answering

                stack.enter_context(answering())
            yield

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Make one optimizer step, and compute with what it made of the masters from then on."""
        try:
            report = super().train_step(batch, objective)
        finally:
            if self.built is not None:
                self.built.drop_gradients()
        assert self.built is not None
        self.built.refresh()
        return report

    def load_state(self, path: Path) -> None:
        """Return to an exact state, written in any layout."""
        super().load_state(path)
        assert self.built is not None
        self.built.refresh()

    def close(self) -> None:
        """Let go of the model; leave the process group and Megatron's, together if the others still answer."""
        joined = self.group is not None
        super().close()
        self.built = None
        if joined:
            ranks.forget()
