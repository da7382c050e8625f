"""What the conformance suite must know of the reference generator.

Knows: its options, and how to read the weights it computes with without asking its contract methods.
Does not know: any check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter, Threshold, Witness

if TYPE_CHECKING:
    from torch import Tensor

    from areal_reference.infer.engine import ReferenceInferenceEngine


class LoadedTensors:
    """Reads the parameters of the model object that the next step will run."""

    def __init__(self, engine: ReferenceInferenceEngine) -> None:
        self._engine = engine

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of them on the CPU, under the names of the model's folder."""
        from areal_torch import hf

        model = self._engine.running.loaded.model
        found: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            found.update(hf.folder_tensors(model, name, parameter.detach().cpu().clone()))
        return found


def _witness(engine: ReferenceInferenceEngine) -> Witness:
    return LoadedTensors(engine)


ADAPTER = Adapter(
    witness=_witness,
    models=("qwen3", "qwen2", "llama"),
    architectures=("qwen3_moe", "mistral", "mixtral", "qwen2_moe", "granite", "cohere", "glm4", "gpt2", "opt"),
    traits=("rope.linear", "rope.yarn", "rope.llama3", "activation", "biases"),
    dtypes=("float32", "bfloat16"),
    thresholds=(
        Threshold(counts="prompt", at=7, options={"prefill_tokens": 7}),
        Threshold(counts="length", at=64),
        Threshold(counts="requests", at=8),
    ),
    options={
        "deterministic": {"deterministic": True},
        "weights.kv_kept": {"kv_on_update": "keep"},
        "weights.kv_recomputed": {"kv_on_update": "recompute"},
    },
)
