"""What the Archon engine tells the conformance suite about itself.

Knows: what the engine can be checked with.
Does not know: any check.
"""

from __future__ import annotations

from typing import Any

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant
from areal_torch.testing.witness import StageWitness

_ON_FOUR = ("d4", "d2t2", "d2c2", "d2p2", "t2c2", "t2p2", "c2p2")
_EXPERTS_ON_FOUR = ("d4e2", "d4e4", "d2t2e2", "d2c2e4", "d2p2e2", "t2c2e2")
_FOUR = {"layers": 4, "tied": False}
"""Model of a pipeline with several stages on each rank."""


def _units(engine: Any) -> int:  # Any: an engine
    """Return how many parts of this rank's stages are gathered one at a time."""
    from torch.distributed.fsdp import FSDPModule

    return sum(isinstance(module, FSDPModule) for stage in engine.built.stages for module in stage.modules())


def _collectives(engine: Any) -> dict[str, int]:
    """Return how often a step of four micro-batches gathers a unit, or a sequence, and adds up a unit's gradients."""
    from areal_torch.testing.operations import operations_of_step

    made = operations_of_step(engine)
    return {"gathered": made["all_gather"], "reduced": made["chunk_cat"]}


def _computed(engine: Any) -> dict[str, int]:
    """Return how often a step of four micro-batches computes an activation of its eight layers, and a product."""
    from areal_torch.testing.operations import operations_of_step

    made = operations_of_step(engine)
    return {"activations": made["silu"], "products": made["mm"]}


def _stages(engine: Any) -> list[Any]:
    """Return the schedule of the pipeline, how many stages this rank has, and their units."""
    return [engine.built.model.schedule.name, len(engine.built.stages), _units(engine)]


ADAPTER = Adapter(
    models=("qwen3", "qwen2", "llama", "qwen3_moe"),
    traits=("rope.linear", "rope.yarn", "rope.llama3", "biases"),
    dtypes=("float32", "bfloat16"),
    layouts=("d2", "t2", "c2", "p2", "d2e2", "c2e2", *_ON_FOUR, *_EXPERTS_ON_FOUR),
    options={"memory.activation_checkpointing": {"activation_checkpointing": "full", "wrap": "layer"}},
    witness=StageWitness,
    variants={
        "layers": Variant(options={"wrap": "layer", "reshard_after_forward": "always"}, shows=_units),
        "kept": Variant(
            options={"wrap": "layer", "reshard_after_forward": "never", "reduce_every_microbatch": False},
            shows=_collectives,
            gives={"gathered": 12, "reduced": 3},
            layouts=("d2",),
        ),
        "products_kept": Variant(
            options={"activation_checkpointing": "selective"},
            shows=_computed,
            gives={"activations": 16, "products": 176},
        ),
        "whole_sequences": Variant(
            options={"sequence_parallel": False},
            shows=_collectives,
            gives={"gathered": 0, "reduced": 4},
            layouts=("t2", "d2t2"),
        ),
        "experts_apart": Variant(
            options={"wrap": "layer", "reduce_every_microbatch": False},
            shows=_collectives,
            gives={"gathered": 20, "reduced": 5},
            layouts=("d2e2",),
            model={"kind": "qwen3_moe"},
        ),
        "interleaved": Variant(
            options={"pipeline_schedule": "Interleaved1F1B", "stages_per_rank": 2},
            shows=_stages,
            gives=["Interleaved1F1B", 2, 2],
            layouts=("p2", "d2p2"),
            model=_FOUR,
        ),
        "zero_bubble": Variant(  # of four stages two have nothing but layers, each a unit
            options={"pipeline_schedule": "ZBVZeroBubble", "stages_per_rank": 2, "wrap": "layer"},
            shows=_stages,
            gives=["ZBVZeroBubble", 2, 4],
            layouts=("p2",),
            model=_FOUR,
        ),
    },
    bounds={
        "wrap": Bounds(takes=("auto", "layer", "root"), refuses=("", "Layer", "none")),
        "reshard_after_forward": Bounds(takes=("auto", "always", "never"), refuses=("", "sometimes")),
        "activation_checkpointing": Bounds(takes=("none", "selective", "full"), refuses=("", "some")),
        "fp8": Bounds(takes=("none", "tensorwise", "rowwise"), refuses=("", "columnwise")),
        "pipeline_schedule": Bounds(
            takes=("1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"), refuses=("", "GPipe")
        ),
        "stages_per_rank": Bounds(takes=(1,), refuses=(0, -1)),
    },
    without_effect={
        "compile": "the same layers, compiled: a minute for each start, and tests of areal-archon do it",
        "compile_backend": "as `compile`",
        "fp8": "it changes the numbers, as much as eight bits do; tests of areal-archon bound by how much",
        "fp8_emulate": "as `fp8`",
    },
    no_threshold={
        "areal_archon.sharding:SMALL_BYTES": "`wrap: auto` chooses by it: `root` here, `layer` in variants",
        "areal_archon.float8:_CAPABILITY": "the oldest device that multiplies 8-bit numbers",
    },
    thresholds=(
        Threshold(counts="logits", at=320, place="areal_torch.logprobs:CHUNK_ELEMENTS"),
        Threshold(counts="logits", at=640, place="areal_torch.logprobs:KEEP_ELEMENTS"),
        Threshold(counts="saved", at=20_000, place="areal_torch.export:FILE_BYTES"),
    ),
)
