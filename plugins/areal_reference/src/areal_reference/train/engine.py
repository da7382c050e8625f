"""The smallest complete TrainEngine: plain PyTorch, one process, any device.

Knows: how to build one model, and how to run it forward and backward.
Does not know: other ranks, algorithms, files, or where weights go.

Written to be read: `start` puts together parts that every engine shares (`areal_torch`);
an engine of your own differs in how it builds and cuts the model, and in `PlainModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Output, RankContext, TrainSpec
from areal_reference.train.config import ReferenceTrainConfig
from areal_torch import hf, lora
from areal_torch.device import compute_dtype, open_device, seed_everything
from areal_torch.engine import TrainerEngine
from areal_torch.experts import replay_routing
from areal_torch.export import Exporter, FolderWeights, whole
from areal_torch.flops import peak_details
from areal_torch.group import SingleRank
from areal_torch.images import Vision
from areal_torch.layout import check_layout
from areal_torch.model import PackedModel
from areal_torch.offload import DeviceMemory, own_memory
from areal_torch.optimizer import Optimizer
from areal_torch.resume import TrainingState
from areal_torch.step import Limits
from areal_torch.trainer import Trainer


@frozen
class PlainModel:
    """A model in one piece, as `areal_torch.step` drives it."""

    packed: PackedModel

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Run one micro-batch forward."""
        result: Mapping[str, Tensor] = self.packed(batch, outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradient."""
        torch.autograd.backward(loss)


class ReferenceTrainEngine(TrainerEngine):
    """Train a transformers model in one process. Master weights are float32; bfloat16 is autocast."""

    def __init__(self, config: ReferenceTrainConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        super().__init__()
        self.config = config or ReferenceTrainConfig()

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
        experts = replay_routing(model)
        parameters = lora.select_trained(model.eval(), frozen=spec.optimizer is None)
        if self.config.activation_checkpointing:
            hf.recompute_activations(model)
        autocast = None if dtype is torch.float32 else dtype
        packed = PackedModel(model, spec.head, temperature=spec.temperature, autocast=autocast)

        group = SingleRank()
        optimizer = Optimizer(parameters, spec.optimizer) if spec.optimizer else None
        self.trainer = Trainer(
            model=PlainModel(packed),
            optimizer=optimizer,
            group=group,
            device=device,
            limits=Limits.of(spec, hf_config, experts=experts, vision=Vision.of(hf_config), candidates=True),
            exporter=Exporter(
                FolderWeights(model, whole),
                spec.model_path,
                spec.dtype,
                group,
                beside=partial(lora.write_adapter, model, spec.model_path, whole, group),
                sent=lora.AdapterWeights(model, whole) if spec.send_adapter else None,
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
            details=peak_details(spec, rank, hf_config, device),
        )
