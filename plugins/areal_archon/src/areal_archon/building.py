"""A model of this engine put together on one rank: its stages built empty, cut, filled, and driven.

Knows: which part needs which.
Does not know: how any of them works; the modules beside this one do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from areal_archon import fitting, sharding
from areal_archon.checkpointing import keep_products
from areal_archon.config import ArchonConfig
from areal_archon.expert import ExpertRanks
from areal_archon.float8 import multiply_in_8_bits
from areal_archon.loading import fill
from areal_archon.models.decoder import Block, Decoder, Setting
from areal_archon.models.names import parameters_of
from areal_archon.models.rotary import Rotary
from areal_archon.pipeline import PipelinedModel
from areal_archon.ranks import Ranks
from areal_archon.schedules import Schedule
from areal_archon.sharding import Held
from areal_archon.tensor import TensorRanks
from areal_archon.weights import Gathering
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, TrainSpec
from areal_torch import hf
from areal_torch.attention import Packing
from areal_torch.blueprint import Blueprint
from areal_torch.context import ContextRanks
from areal_torch.folder_checks import SAME_MODEL, refusing
from areal_torch.parameters import open_folder
from areal_torch.shape import ModelShape, read_shape
from areal_torch.stage_weights import StageWeights


@frozen(kw_only=True, eq=False)
class ArchonBlueprint(Blueprint):
    """What every rank knows of the whole model before any of it is built."""

    rotary: Rotary

    @classmethod
    def read(cls, spec: TrainSpec, layout: Mapping[str, int], schedule: Schedule | None) -> ArchonBlueprint:
        """Read the folder's configuration and headers, and refuse what does not fit.

        Raises:
            ModelError: no model, one this engine has no definition of, or other weights than its configuration says.
            LayoutError: the layout does not divide it.
        """
        config = hf.load_config(spec.model_path, spec.head)
        with refusing(f"archon cannot build the model of {spec.model_path!r}", SAME_MODEL):
            shape = read_shape(spec.model_path, config, spec.head, engine="archon")
            fitting.check_fits(shape, layout, schedule)
            rotary = Rotary.of(spec.model_path, config, shape.head_dim)
            with torch.device("meta"):
                whole = Decoder(shape, Setting(rotary=rotary))
            parameters = parameters_of(shape, whole.named_parameters())
        files = open_folder(spec.model_path, parameters)
        return cls(config=config, shape=shape, rotary=rotary, parameters=parameters, files=files)


@frozen(eq=False)
class ShardedModel:
    """The whole model as one stage, in shards, as `areal_torch.step` drives it."""

    root: FSDPModule
    context: ContextRanks | None
    reduce_every_microbatch: bool

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Run one micro-batch forward. Collective."""
        assert isinstance(self.root, Decoder)
        packing = Packing.of(batch, self.context)
        input_ids = packing.filled(batch.tokens["input_ids"])[packing.part]
        result: Mapping[str, Tensor] = self.root(input_ids, packing=packing, batch=batch, outputs=outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradient, over d and c."""
        self.root.set_requires_gradient_sync(last or self.reduce_every_microbatch)
        self.root.set_is_last_backward(last)
        torch.autograd.backward(loss)


@frozen(kw_only=True, eq=False)
class Built:
    """A model ready to be driven."""

    model: ShardedModel | PipelinedModel
    stages: Sequence[Decoder]
    held: Mapping[str, Held]
    weights: StageWeights

    def reshard(self) -> None:
        """Give up what a pass without a backward pass left gathered; does nothing where nothing is."""
        for stage in self.stages:
            for module in stage.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


def build(
    blueprint: ArchonBlueprint,
    spec: TrainSpec,
    ranks: Ranks,
    schedule: Schedule | None,
    dtype: torch.dtype,
    device: torch.device,
    config: ArchonConfig,
) -> tuple[Built, Callable[[], None]]:
    """Build and cut this rank's stages, with memory and without values.

    Returns:
        The model, and what fills it from the folder: not collective, so that ranks can agree on how it went.
    """
    shape = blueprint.shape
    setting = Setting(
        rotary=blueprint.rotary,
        tensor=TensorRanks(ranks.tensor, sequence=config.sequence_parallel),
        experts=ExpertRanks(ranks.expert),
        context=ranks.context,
        temperature=spec.temperature,
    )
    numbers = (0,) if schedule is None else schedule.stages(ranks.place["p"])
    last = 0 if schedule is None else schedule.num_stages - 1
    stages = []
    for number in numbers:
        layers = fitting.layers_of(number, shape, schedule)
        with torch.device("meta"):
            stage = Decoder(shape, setting, layers=layers, first=number == 0, last=number == last)
        stages.append(_cut(stage, blueprint, spec, ranks, dtype, device, config))
    held = sharding.held(stages, blueprint.parameters, ranks)
    weights = StageWeights(
        shape=shape,
        parameters=blueprint.parameters,
        owners=fitting.owners(blueprint.parameters, shape, schedule),
        stage=ranks.place["p"],
        pipeline=ranks.pipeline,
        device=device,
        gather=Gathering(held=held, ranks=ranks),
    )
    built = Built(
        model=_driven(stages, shape, ranks, schedule, dtype, device, config), stages=stages, held=held, weights=weights
    )
    return built, lambda: fill(held.values(), blueprint.files)


def _cut(
    stage: Decoder,
    blueprint: ArchonBlueprint,
    spec: TrainSpec,
    ranks: Ranks,
    dtype: torch.dtype,
    device: torch.device,
    config: ArchonConfig,
) -> Decoder:
    multiply_in_8_bits(stage.blocks, config)
    stage.train().requires_grad_(spec.optimizer is not None)
    for block in stage.blocks.values():
        assert isinstance(block, Block)
        if config.activation_checkpointing != "none":
            block.recompute(keep_products if config.activation_checkpointing == "selective" else None)
        if config.compile:
            block.translate(config.compile_backend)
    small = 4 * blueprint.num_parameters < sharding.SMALL_BYTES
    resharding = {"always": True, "never": False, "auto": ranks.pipeline is None}[config.reshard_after_forward]
    sharding.shard(
        stage,
        ranks,
        dtype,
        layers_apart=config.wrap == "layer" or (config.wrap == "auto" and not small),
        reshard_after_forward=resharding,
    )
    return stage.to_empty(device=device)


def _driven(
    stages: Sequence[Decoder],
    shape: ModelShape,
    ranks: Ranks,
    schedule: Schedule | None,
    dtype: torch.dtype,
    device: torch.device,
    config: ArchonConfig,
) -> ShardedModel | PipelinedModel:
    if schedule is None:
        (root,) = stages
        assert isinstance(root, FSDPModule)
        return ShardedModel(root, ranks.context, config.reduce_every_microbatch)
    assert ranks.pipeline is not None
    return PipelinedModel(
        stages,
        schedule,
        ranks.pipeline,
        hidden_size=shape.hidden,
        dtype=dtype,
        device=device,
        context=ranks.context,
        tied=("embedding.weight", "head.weight") if shape.tied else None,
    )
