"""Whether a model fits a layout, and which layers each stage gets. Everything here is refused before anything loads.

Knows: what each axis divides.
Does not know: tensors or process groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from areal_archon.config import ArchonConfig
from areal_archon.schedules import Schedule
from areal_core.contract.errors import CapabilityError, LayoutError
from areal_torch.context import check_context
from areal_torch.layout import check_divides, check_shares
from areal_torch.parameters import Parameter
from areal_torch.shape import ModelShape


def check_options(layout: Mapping[str, int], config: ArchonConfig) -> None:
    """Refuse what torch cannot do to a layer that ranks share: compile it, or keep some of a mixture's activations.

    Raises:
        CapabilityError: both are asked for.
    """
    if layout.get("t", 1) > 1 and config.compile:
        raise CapabilityError(
            "compile does not work with t",
            why="torch.compile does not trace the collectives between tensor ranks inside a layer",
            fix="turn compile off, or use c or d instead of t",
        )
    if layout.get("e", 1) > 1 and config.activation_checkpointing == "selective":
        raise CapabilityError(
            "activation_checkpointing: selective cannot be combined with e",
            why="experts are an FSDP unit of their own inside the layer, which torch's selective checkpoint takes "
            "for operations that were not there before",
            fix="set activation_checkpointing to full",
        )


def schedule_of(layout: Mapping[str, int], config: ArchonConfig) -> Schedule | None:
    """Return the pipeline schedule of a layout, None without a pipeline.

    Raises:
        LayoutError: the schedule takes another number of stages.
        CapabilityError: options of which the gradients would be wrong together.
    """
    if layout.get("p", 1) == 1:
        return None
    schedule = Schedule(name=config.pipeline_schedule, num_ranks=layout["p"], num_virtual=config.stages_per_rank)
    if schedule.splits_backward and config.reshard_after_forward == "always":
        raise CapabilityError(
            f"reshard_after_forward: always cannot be combined with {schedule.name}",
            why="it computes the gradients of weights after those of inputs, and weights dropped in between would "
            "get none, silently",
            fix="leave reshard_after_forward at auto, or use 1F1B or Interleaved1F1B",
        )
    if schedule.splits_backward and config.activation_checkpointing != "none":
        raise CapabilityError(
            f"activation_checkpointing: {config.activation_checkpointing} cannot be combined with {schedule.name}",
            why="it runs each layer's backward pass in two parts, and both would compute the layer again",
            fix="leave activation_checkpointing at none, or use 1F1B or Interleaved1F1B",
        )
    return schedule


def check_fits(shape: ModelShape, layout: Mapping[str, int], schedule: Schedule | None) -> None:
    """Refuse a layout that does not divide the model.

    Raises:
        LayoutError: naming what does not divide, and what would; or a rank would have no entry of the vocabulary.
    """
    tensor, context, expert = (layout.get(letter, 1) for letter in "tce")
    check_divides("t", tensor, shape.kv_heads, "key and value heads")
    check_divides("t", tensor, shape.heads, "attention heads")
    check_shares("t", tensor, shape.vocabulary, "entries of the vocabulary")
    if len(shape.mixtures) < shape.layers:
        check_divides("t", tensor, shape.intermediate, "feed-forward columns")
    if shape.mixtures:
        check_divides("t", tensor, shape.expert_intermediate, "columns of an expert")
        check_divides("e", expert, shape.experts, "experts")
    elif expert > 1:
        raise LayoutError(
            f"e{expert} is for models with experts",
            why=f"this one, a {shape.family}, has none",
            fix="leave e out; the ranks then share the dense layers as data ranks do",
        )
    if context > 1:
        check_context(context, shape.heads // tensor, shape.kv_heads // tensor)
    if schedule is None:
        return
    check_divides("p", schedule.num_stages, shape.layers, "layers")
    if shape.tied and schedule.last_rank == 0:
        raise LayoutError(
            f"{schedule.name} puts the first and the last stage on one rank",
            why="the embedding of this model is its head too, and one rank would hold it twice",
            fix="use 1F1B, Interleaved1F1B or InterleavedZeroBubble",
        )


def layers_of(stage: int, shape: ModelShape, schedule: Schedule | None) -> range:
    """Return the layers of a stage."""
    count = shape.layers // (1 if schedule is None else schedule.num_stages)
    return range(stage * count, (stage + 1) * count)


def owners(parameters: Sequence[Parameter], shape: ModelShape, schedule: Schedule | None) -> dict[str, int]:
    """Return for each parameter the pipeline rank whose stage has it."""
    if schedule is None:
        return dict.fromkeys((parameter.name for parameter in parameters), 0)
    rank_of = {stage: rank for rank in range(schedule.num_ranks) for stage in schedule.stages(rank)}
    per_stage = shape.layers // schedule.num_stages

    def stage_of(parameter: Parameter) -> int:
        if parameter.layer is not None:
            return parameter.layer // per_stage
        return 0 if parameter.name.startswith("embedding") else schedule.num_stages - 1

    return {parameter.name: rank_of[stage_of(parameter)] for parameter in parameters}
