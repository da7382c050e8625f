"""What the reference trainer tells the conformance suite about itself.

Knows: where this engine keeps its parameters.
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
class ReferenceWitness:
    """Reads the parameters themselves. Any: an engine."""

    engine: Any

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of all parameters."""
        from areal_torch import hf

        trainer = self.engine.trainer
        model = trainer.model.packed.hf
        found: dict[str, Tensor] = {}
        for name, parameter in trainer.state.parameters.items():
            found |= hf.folder_tensors(model, name, parameter.detach().cpu().clone())
        return found


def _computes_again(engine: Any) -> bool:
    """Return whether layers keep only what goes into them."""
    return bool(engine.trainer.model.packed.hf.is_gradient_checkpointing)


ADAPTER = Adapter(
    variants={"recomputed": Variant(options={"activation_checkpointing": True}, shows=_computes_again)},
    bounds={"activation_checkpointing": Bounds(takes=(True, False), refuses=("perhaps", 2))},
    models=("qwen3", "qwen2", "llama", "qwen3_moe"),
    architectures=("mistral", "mixtral", "qwen2_moe", "granite", "cohere", "glm4", "phi", "gpt2", "opt"),
    traits=("rope.linear", "rope.dynamic", "rope.yarn", "rope.llama3", "activation", "biases"),
    dtypes=("float32", "bfloat16"),
    layouts=(),
    thresholds=(
        Threshold(counts="logits", at=320, place="areal_torch.logprobs:CHUNK_ELEMENTS"),
        Threshold(counts="logits", at=640, place="areal_torch.logprobs:KEEP_ELEMENTS"),
        Threshold(counts="saved", at=20_000, place="areal_torch.export:FILE_BYTES"),
    ),
    options={"memory.activation_checkpointing": {"activation_checkpointing": True}},
    witness=ReferenceWitness,
)
