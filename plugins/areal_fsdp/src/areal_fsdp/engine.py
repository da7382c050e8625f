"""FSDP2 as a TrainEngine: one rank of any number, gloo on the CPU, NCCL on GPUs, HCCL on NPUs.

Knows: the process group, in which order a model is cut, when gradients are reduced.
Does not know: algorithms, micro-batches, files; `areal_torch` does all that for every engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Head, Output, RankContext, TrainSpec
from areal_fsdp import sharding, tensor
from areal_fsdp.config import FSDPConfig
from areal_torch import hf, lora
from areal_torch.device import collective_backend, compute_dtype, open_device, seed_everything
from areal_torch.engine import TrainerEngine
from areal_torch.experts import replay_routing
from areal_torch.export import Exporter, FolderWeights
from areal_torch.flops import peak_details
from areal_torch.group import ProcessRanks, agree
from areal_torch.images import Vision
from areal_torch.layout import check_layout, coordinates
from areal_torch.model import PackedModel
from areal_torch.offload import DeviceMemory
from areal_torch.optimizer import Optimizer
from areal_torch.process_group import join
from areal_torch.resume import TrainingState
from areal_torch.step import Limits
from areal_torch.trainer import Trainer


@frozen
class ShardedModel:
    """A model in shards, as `areal_torch.step` drives it. `num_shares` ranks saw different tokens."""

    root: FSDPModule
    num_shares: int
    reduce_every_microbatch: bool

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Run one micro-batch forward. Collective."""
        assert isinstance(self.root, torch.nn.Module)
        result: Mapping[str, Tensor] = self.root(batch, outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradient. FSDP averages over its ranks; the factor makes it a sum."""
        self.root.set_requires_gradient_sync(last or self.reduce_every_microbatch)
        self.root.set_is_last_backward(last)
        torch.autograd.backward(loss * self.num_shares)

    def reshard(self) -> None:
        """Give up what a pass without a backward pass left gathered; does nothing where nothing is."""
        assert isinstance(self.root, torch.nn.Module)
        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class FSDPEngine(TrainerEngine):
    """Train a transformers model sharded over ranks. Master weights are float32 shards."""

    name: ClassVar[str] = "fsdp"
    """Of the backend; what it says of itself names it."""

    def __init__(self, config: FSDPConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        super().__init__()
        self._config = config or FSDPConfig()

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Join the process group, shard the model, make the optimizer."""
        layout = dict(spec.layout) or {"d": rank.world_size}
        check_layout(layout, rank.world_size, engine=self.name, can="dtc", fix="use archon or megatron for p and e")
        sharding.check_options(self._config, layout)
        dtype = compute_dtype(spec.dtype)
        device = open_device(rank.device, rank.local_rank)
        self.group = join(rank, layout)
        seed_everything(device, spec.seed + coordinates(layout, rank.rank)["d"])
        try:
            self.trainer, model = self._build(self.group, spec, rank, layout, dtype, device)
        except BaseException:
            self.close()
            raise
        return EngineInfo(
            engine=self.name,
            engine_version=str(torch.__version__),
            device=str(device),
            num_parameters=lora.num_parameters(model),
            context_length=hf.context_length(model.config),
            data_rank=coordinates(layout, rank.rank)["d"],
            data_size=layout.get("d", 1),
            details={
                "wrap": self._config.wrap,
                "backend": collective_backend(rank.device),
                **peak_details(spec, rank, model.config, device),
            },
        )

    def _build(
        self,
        group: ProcessRanks,
        spec: TrainSpec,
        rank: RankContext,
        layout: Mapping[str, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Trainer, hf.Model]:
        """Cut an empty model over tensor ranks, then over the others; fill it from rank 0, which alone read weights."""
        model, source, adapter_facts = _load(group, spec, layout)
        experts = replay_routing(model)
        lora.select_trained(model.eval(), frozen=spec.optimizer is None)
        if self._config.activation_checkpointing:
            hf.recompute_activations(model)
        meshes = sharding.Meshes.of(layout, rank, self._config.replicas, device)
        vocabulary = None
        if meshes.tensor is not None:
            tensor.share_out(model, meshes.tensor)
            vocabulary = meshes.tensor.get_group() if spec.head is Head.CAUSAL_LM else None
        packed = PackedModel(
            model, spec.head, temperature=spec.temperature, vocabulary=vocabulary, context=meshes.context
        )
        root = sharding.shard(packed, meshes.shards, dtype, self._config)
        offloaded = self._config.cpu_offload and device.type != "cpu"
        sharding.fill(packed, source, device, offloaded=offloaded)
        del source  # as large as the model, on rank 0

        parameters = lora.select_trained(model, frozen=spec.optimizer is None)
        optimizer = Optimizer(parameters, spec.optimizer) if spec.optimizer else None
        trainer = Trainer(
            model=ShardedModel(root, meshes.shards.size(), self._config.reduce_every_microbatch),
            optimizer=optimizer,
            group=group,
            device=device,
            limits=Limits.of(spec, model.config, experts=experts, vision=Vision.of(model.config), candidates=True),
            exporter=Exporter(
                FolderWeights(model, sharding.gather),
                spec.model_path,
                spec.dtype,
                group,
                beside=partial(lora.write_adapter, model, spec.model_path, sharding.gather, group),
                sent=lora.AdapterWeights(model, sharding.gather) if spec.send_adapter else None,
            ),
            state=TrainingState(
                group=group,
                device=device,
                parameters=parameters,
                optimizer=optimizer,
                facts=hf.identity(model, spec.head, trained=spec.optimizer is not None) | adapter_facts,
            ),
            memory=DeviceMemory(device, [*model.parameters(), *(optimizer.tensors if optimizer else ())]),
        )
        return trainer, model

    @contextmanager
    def around_pass(self) -> Iterator[None]:
        """Let every parameter be its shard again after a pass, which sending and saving read."""
        try:
            yield
        finally:
            assert self.trainer is not None
            assert isinstance(self.trainer.model, ShardedModel)
            self.trainer.model.reshard()


def _load(
    group: ProcessRanks, spec: TrainSpec, layout: Mapping[str, int]
) -> tuple[hf.Model, hf.Model | None, dict[str, Any]]:  # Any: json
    """Return the model without memory, on rank 0 with weights too, and what a state of its adapter is of. Collective.

    A is drawn with the weights, once: the other ranks are given it like them.
    """
    empty: list[hf.Model] = []
    source: list[hf.Model] = []

    def load() -> dict[str, Any]:  # Any: json
        config = hf.load_config(spec.model_path, spec.head, images=True)
        empty.append(hf.empty_model(config, spec.head))
        sharding.check(empty[0], layout)
        lora.add_adapters(empty[0], spec)
        if group.rank != 0:
            return {}
        source.append(hf.load_model(spec.model_path, config, spec.head))
        lora.add_adapters(source[0], spec)
        return lora.identity(source[0], spec.lora)

    adapter_facts: dict[str, Any] = agree(group, load)[0]  # Any: json
    return empty[0], source[0] if source else None, adapter_facts
