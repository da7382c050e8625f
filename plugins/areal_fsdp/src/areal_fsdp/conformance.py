"""What the FSDP engine tells the conformance suite about itself.

Knows: where this engine keeps its shards, and how one is made whole.
Does not know: any check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class FSDPWitness:
    """Gathers the parameters themselves; collective. Any: an engine."""

    engine: Any

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of all parameters, whole, as a folder has them."""
        from areal_fsdp.sharding import gather
        from areal_torch import hf

        trainer = self.engine.trainer
        model = trainer.model.root.hf
        found: dict[str, Tensor] = {}
        for name, parameter in trainer.state.parameters.items():
            found |= hf.folder_tensors(model, name, gather(parameter).cpu().clone())
        return found


def _units(engine: Any) -> int:  # Any: an engine
    """Return how many parts of the model are gathered one at a time."""
    from torch.distributed.fsdp import FSDPModule

    return sum(isinstance(module, FSDPModule) for module in engine.trainer.model.root.modules())


def _collectives(engine: Any) -> dict[str, int]:
    """Return how often a step of four micro-batches gathers a unit, and adds up the gradients of one."""
    from areal_torch.testing.operations import operations_of_step

    made = operations_of_step(engine)
    return {"gathered": made["all_gather"], "reduced": made["chunk_cat"]}


def _held(engine: Any) -> float:
    """Return which share of the model lies on this rank."""
    from areal_torch.optimizer import local

    whole = engine.trainer.state.parameters.values()
    share: float = sum(local(parameter).numel() for parameter in whole) / sum(parameter.numel() for parameter in whole)
    return share


ADAPTER = Adapter(
    models=("qwen3", "qwen2", "llama", "qwen3_moe"),
    architectures=("mistral", "mixtral", "qwen2_moe", "granite", "cohere", "glm4", "phi", "gpt2", "opt"),
    traits=("rope.linear", "rope.dynamic", "rope.yarn", "rope.llama3", "activation", "biases"),
    dtypes=("float32", "bfloat16"),
    layouts=("d2", "t2", "c2", "d4", "d2t2", "d2c2", "c2t2"),
    options={"memory.activation_checkpointing": {"activation_checkpointing": True, "wrap": "layer"}},
    witness=FSDPWitness,
    variants={
        "layers": Variant(options={"wrap": "layer"}, shows=_units),
        "kept": Variant(
            options={"wrap": "layer", "reshard_after_forward": False, "reduce_every_microbatch": False},
            shows=_collectives,
            gives={"gathered": 0, "reduced": 3},
        ),
        "layers_of_two": Variant(
            options={"wrap": "layer", "reshard_after_forward": False, "reduce_every_microbatch": False},
            layouts=("d2", "t2", "c2"),
            shows=_collectives,
            gives={"gathered": 12, "reduced": 3},
        ),
        "replicas": Variant(options={"replicas": 2}, layouts=("d2", "d4"), shows=_held, gives=1.0),
    },
    bounds={
        "wrap": Bounds(takes=("auto", "layer", "root"), refuses=("", "Layer", "none")),
        "replicas": Bounds(takes=(1,), refuses=(0, -1)),
    },
    without_effect={
        "cpu_offload": "on a CPU everything is in host memory",
        "compile": "the same layers, compiled: half a minute for each start, and tests of areal-fsdp do it",
        "compile_backend": "as `compile`",
    },
    no_threshold={"areal_fsdp.sharding:SMALL_BYTES": "`wrap: auto` chooses by it: `root` here, `layer` in variants"},
    thresholds=(
        Threshold(counts="logits", at=320, place="areal_torch.logprobs:CHUNK_ELEMENTS"),
        Threshold(counts="logits", at=640, place="areal_torch.logprobs:KEEP_ELEMENTS"),
        Threshold(counts="saved", at=20_000, place="areal_torch.export:FILE_BYTES"),
    ),
)
