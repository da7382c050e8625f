"""What the Megatron engine tells the conformance suite about itself.

Knows: what the engine can be checked with.
Does not know: any check.
"""

from __future__ import annotations

from typing import Any

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant
from areal_torch.testing.witness import StageWitness

_ON_FOUR = ("d2t2", "d2c2", "d2p2", "t2c2", "t2p2", "c2p2")
_EXPERTS_ON_FOUR = ("d4e4", "d2t2e2", "d2p2e2", "t2c2e2")


def _computed_again(engine: Any) -> str | None:  # Any: an engine
    """Return what of a layer the stages compute again in the backward pass."""
    granularity: str | None = engine.built.model.stages[0].model.config.recompute_granularity
    return granularity


def _masters(engine: Any) -> list[Any]:
    """Return how many moments this rank keeps of each number of its weights, and whether masters lie elsewhere."""
    held = engine.built.held.values()
    moments = sum(tensor.numel() for tensor in engine.trainer.optimizer.tensors)
    apart = all(each.master.data_ptr() != each.weight.data_ptr() for each in held)
    return [moments / sum(each.weight.numel() for each in held), apart]


def _stages(engine: Any) -> int:
    """Return how many stages this rank has."""
    return len(engine.built.model.stages)


def _of_experts(engine: Any) -> list[int]:
    """Return how many weights of experts lie on this rank, and how many numbers they have."""
    found = [each.weight.numel() for each in engine.built.held.values() if each.parameter.expert is not None]
    return [len(found), sum(found)]


ADAPTER = Adapter(
    models=("qwen3", "qwen2", "llama", "qwen3_moe"),
    traits=("rope.linear", "rope.llama3"),
    dtypes=("float32", "bfloat16"),
    layouts=("d2", "t2", "c2", "p2", "d2e2", "t2e2", "c2e2", *_ON_FOUR, *_EXPERTS_ON_FOUR),
    options={"memory.activation_checkpointing": {"activation_checkpointing": "full"}},
    witness=StageWitness,
    variants={
        "attention_again": Variant(
            options={"activation_checkpointing": "selective"}, shows=_computed_again, gives="selective"
        ),
        "masters_alone": Variant(options={"distributed_optimizer": True}, shows=_masters, gives=[2.0, True]),
        "masters_shared": Variant(
            options={"distributed_optimizer": True},
            layouts=("d2", "c2", "t2", "p2", "d2t2"),
            shows=_masters,
            gives=[1.0, True],
        ),
        "masters_of_experts": Variant(
            options={"distributed_optimizer": True},
            layouts=("d2",),
            model={"kind": "qwen3_moe"},
            shows=_masters,
            gives=[1.0, True],
        ),
        "interleaved": Variant(options={"virtual": 2}, layouts=("p2",), model={"layers": 4}, shows=_stages, gives=2),
        "columns_of_experts": Variant(
            options={"expert_tensor": 2}, layouts=("d2",), model={"kind": "qwen3_moe"}, shows=_of_experts
        ),
    },
    bounds={
        "virtual": Bounds(takes=(1,), refuses=(0, -1)),
        "expert_tensor": Bounds(takes=(1,), refuses=(0, -1)),
        "activation_checkpointing": Bounds(takes=("none", "selective", "full"), refuses=("", "some")),
    },
    thresholds=(
        Threshold(counts="logits", at=320, place="areal_torch.logprobs:CHUNK_ELEMENTS"),
        Threshold(counts="logits", at=640, place="areal_torch.logprobs:KEEP_ELEMENTS"),
        Threshold(counts="saved", at=20_000, place="areal_torch.export:FILE_BYTES"),
    ),
    patience=4.0,  # a start makes some twenty process groups, which four ranks on two cores do slowly
    anchors=(
        "megatron.core.tensor_parallel.mappings:_gather_along_first_dim",
        "megatron.core.tensor_parallel.random:_set_cuda_rng_state",
        "megatron.core.transformer.moe.token_dispatcher:maybe_move_tensor_to_cpu",
    ),
)
