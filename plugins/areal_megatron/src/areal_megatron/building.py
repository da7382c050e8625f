"""A model of this engine put together on one rank: Megatron's stages built empty, filled, and driven.

Knows: what a model's sizes are called in Megatron, and which part needs which.
Does not know: how any of them works; the modules beside this one do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import silu

from areal_core.contract.train import Head, TrainSpec
from areal_megatron import fitting, sharding
from areal_megatron.config import MegatronConfig
from areal_megatron.gradients import Gradients
from areal_megatron.layers import layers_of_torch, torch_computes
from areal_megatron.library import GPTModel, TransformerConfig, get_gpt_decoder_block_spec, initialize_rng_tracker
from areal_megatron.loading import fill
from areal_megatron.names import native_names, parameters_of
from areal_megatron.pipeline import ScheduledModel
from areal_megatron.ranks import Ranks
from areal_megatron.rotary import Rotary
from areal_megatron.routes import replay_routing
from areal_megatron.sharding import Held
from areal_megatron.stage import ModelStage
from areal_megatron.weights import Gathering
from areal_torch import hf
from areal_torch.blueprint import Blueprint
from areal_torch.folder_checks import SAME_MODEL, refusing
from areal_torch.layout import largest_share
from areal_torch.parameters import open_folder
from areal_torch.shape import ModelShape
from areal_torch.stage_weights import StageWeights


@frozen(kw_only=True, eq=False)
class MegatronBlueprint(Blueprint):
    """What every rank knows of the whole model before any of it is built."""

    rotary: Rotary

    @classmethod
    def read(cls, spec: TrainSpec, layout: Mapping[str, int], config: MegatronConfig, device: str) -> MegatronBlueprint:
        """Read the folder's configuration and headers, and refuse what does not fit.

        Raises:
            ModelError: no model, one whose weights are not mapped, or other weights than its configuration says.
            LayoutError: the layout does not divide it.
        """
        source = hf.load_config(spec.model_path, spec.head)
        with refusing(f"megatron cannot build the model of {spec.model_path!r}", SAME_MODEL):
            shape = fitting.shape_of(spec.model_path, source, spec.head)
            fitting.check_fits(spec.model_path, shape, layout, config, device)
            rotary = Rotary.of(spec.model_path, source, shape.head_dim)
            parameters = parameters_of(shape)
        files = open_folder(spec.model_path, parameters)
        return cls(config=source, shape=shape, rotary=rotary, parameters=parameters, files=files)


@frozen(kw_only=True, eq=False)
class Built:
    """A model ready to be driven."""

    model: ScheduledModel
    held: Mapping[str, Held]
    weights: StageWeights

    @property
    def tensors(self) -> list[Tensor]:
        """Return all that stays on the device between two steps, but for the optimizer's moments."""
        return [tensor for each in self.held.values() for tensor in (each.weight, each.master)]

    def drop_gradients(self) -> None:
        """Give up what a step needed."""
        if self.model.gradients is not None:
            self.model.gradients.drop()

    def refresh(self) -> None:
        """Let the layers compute with what an optimizer or a state made of the masters. Collective."""
        for each in self.held.values():
            each.refresh()


def build(
    blueprint: MegatronBlueprint,
    spec: TrainSpec,
    ranks: Ranks,
    dtype: torch.dtype,
    device: torch.device,
    config: MegatronConfig,
) -> tuple[Built, Callable[[], None]]:
    """Build this rank's stages, with memory and without values.

    Returns:
        The model, and what fills it from the folder: not collective, so that ranks can agree on how it went.
    """
    shape = blueprint.shape
    initialize_rng_tracker(inference_rng_tracker=True)  # nothing random is computed: dropout is off
    sizes = megatron_config(shape, ranks.degrees, dtype, device, config)
    stages = [_stage(turn, blueprint, spec, ranks, sizes, device, config) for turn in range(config.virtual)]
    named = [_named(stage, turn, shape, ranks, config) for turn, stage in enumerate(stages)]
    held = sharding.held(named, blueprint.parameters, ranks, share_masters=config.distributed_optimizer)
    weights = StageWeights(
        shape=shape,
        parameters=blueprint.parameters,
        owners=fitting.owners(blueprint.parameters, shape, ranks.degrees["p"], config),
        stage=ranks.place["p"],
        pipeline=ranks.pipeline,
        device=device,
        gather=Gathering(held=held, ranks=ranks, num_experts=shape.experts, device=device),
    )
    model = ScheduledModel(
        stages=stages,
        ranks=ranks,
        gradients=Gradients(held, ranks) if spec.optimizer is not None else None,
        tied=shape.tied,
        device=device,
    )
    return Built(model=model, held=held, weights=weights), lambda: fill(held.values(), blueprint.files)


def megatron_config(
    shape: ModelShape, degrees: Mapping[str, int], dtype: torch.dtype, device: torch.device, config: MegatronConfig
) -> Any:
    """Return Megatron's configuration of a model. Any: megatron is not typed."""
    on_cpu = device.type == "cpu"
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=shape.norm_eps,
        qk_layernorm=shape.qk_norm,
        add_qkv_bias=shape.qkv_bias,
        add_bias_linear=False,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=degrees["t"],
        pipeline_model_parallel_size=degrees["p"],
        virtual_pipeline_model_parallel_size=config.virtual if config.virtual > 1 else None,
        context_parallel_size=degrees["c"],
        expert_model_parallel_size=degrees["e"],
        expert_tensor_parallel_size=config.expert_tensor,
        sequence_parallel=degrees["t"] > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_cpu_initialization=on_cpu,
        perform_initialization=False,  # every weight is read from a folder
        batch_p2p_comm=not on_cpu,
        deallocate_pipeline_outputs=True,
        cuda_graph_scope=[],
        calculate_per_token_loss=True,  # the objective has divided by its normaliser; no schedule may again
        **_recomputation(config),
        **(_experts(shape, grouped=not torch_computes(device.type)) if shape.mixtures else {}),
    )


def _recomputation(config: MegatronConfig) -> dict[str, Any]:  # Any, here and below: fields of TransformerConfig
    fields: dict[str, dict[str, Any]] = {
        "none": {},
        "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }
    return fields[config.activation_checkpointing]


def _experts(shape: ModelShape, *, grouped: bool) -> dict[str, Any]:
    alike = len(shape.mixtures) == shape.layers
    return {
        "num_moe_experts": shape.experts,
        "moe_ffn_hidden_size": shape.expert_intermediate,
        "moe_layer_freq": 1 if alike else [int(layer in shape.mixtures) for layer in range(shape.layers)],
        "moe_router_topk": shape.experts_per_token,
        "moe_router_pre_softmax": not shape.normalized_gates,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": grouped,
    }


def _stage(
    turn: int,
    blueprint: MegatronBlueprint,
    spec: TrainSpec,
    ranks: Ranks,
    sizes: Any,
    device: torch.device,
    config: MegatronConfig,
) -> ModelStage:
    shape, pipeline = blueprint.shape, ranks.degrees["p"]
    vp_stage = turn if config.virtual > 1 else None
    first = ranks.place["p"] == 0 and turn == 0
    last = ranks.place["p"] == pipeline - 1 and turn == config.virtual - 1
    if torch_computes(device.type):
        layers = layers_of_torch(sizes, vp_stage)
    else:
        layers = get_gpt_decoder_block_spec(sizes, use_transformer_engine=True, vp_stage=vp_stage)
    model = GPTModel(
        sizes,
        layers,
        vocab_size=largest_share(shape.vocabulary, ranks.degrees["t"]) * ranks.degrees["t"],
        max_sequence_length=hf.context_length(blueprint.config),
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=shape.tied and first and last,
        position_embedding_type="none",  # angles are given to the decoder, as transformers computes them
        vp_stage=vp_stage,
    )
    if last and shape.head is Head.VALUE:
        del model.output_layer
        model.score = nn.Linear(shape.hidden, 1, dtype=sizes.params_dtype)
    model.to(device)  # routers are built on the CPU, and would move only when they are first used
    for number, layer in zip(
        fitting.layers_of(ranks.place["p"], turn, shape, pipeline, config), model.decoder.layers, strict=True
    ):
        if number in shape.mixtures:
            replay_routing(layer, sorted(shape.mixtures).index(number))
    model.train().requires_grad_(spec.optimizer is not None)
    return ModelStage(model=model, shape=shape, rotary=blueprint.rotary, ranks=ranks, temperature=spec.temperature)


def _named(
    stage: ModelStage, turn: int, shape: ModelShape, ranks: Ranks, config: MegatronConfig
) -> Iterator[tuple[str, nn.Parameter]]:
    first_layer = fitting.layers_of(ranks.place["p"], turn, shape, ranks.degrees["p"], config).start
    first_expert = ranks.expert.rank() * (shape.experts // ranks.expert.size())
    return native_names(stage.model.named_parameters(), first_layer, first_expert)
