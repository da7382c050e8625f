"""Weights on their way in: checked against the model's own tensors, fingerprinted, held beside what serves.

Knows: names, shapes, dtypes, tied names.
Does not know: where they come from, or when they are served.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import define, field, frozen
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CoverageError, ModelError
from areal_core.contract.weights import Receipt, WeightManifest
from areal_core.weights.coverage import Coverage, check_names
from areal_core.weights.tensors import torch_dtype

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@frozen(kw_only=True)
class Needs:
    """What the model is made of: shapes by name; `tied` names share the bytes of another."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    dtype: torch.dtype
    device: torch.device


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read every safetensors file of a model folder.

    Raises:
        ModelError: there is none, or one is torn.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"model folder {str(folder)!r} holds no *.safetensors", fix="save the model as safetensors")
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"weights in {str(folder)!r} cannot be read", why=str(error), fix="copy the folder again"
        ) from error


@define(kw_only=True, eq=False)
class IncomingWeights:
    """One version being taken in. `tensors` is complete once `receipt` returns."""

    needs: Needs
    manifest: WeightManifest
    tensors: dict[str, Tensor] = field(factory=dict)
    _coverage: Coverage = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Check names, shapes, dtypes and ties before the first byte."""
        self._coverage = Coverage(self.manifest)
        check_names({*self.needs.shapes, *self.needs.tied}, self.manifest)
        if dict(self.manifest.tied) != dict(self.needs.tied):
            raise CoverageError(
                f"the sender ties {sorted(self.manifest.tied) or 'nothing'}",
                why=f"the model serving ties {sorted(self.needs.tied) or 'nothing'}",
                fix="use the same tie_word_embeddings on both sides",
            )
        for spec in self.manifest.tensors:
            wanted = self.needs.shapes[spec.name]
            if spec.shape != wanted or not torch_dtype(spec).is_floating_point:
                raise CoverageError(
                    f"tensor {spec.name!r} was announced as {spec.dtype} {list(spec.shape)}",
                    why=f"the model has {list(wanted)} of a floating dtype",
                    fix="train and serve the same model",
                )

    def take(self, bucket: Mapping[str, Tensor]) -> None:
        """Copy and prove some tensors. Those of another dtype are proved as they came, then cast."""
        for name, tensor in bucket.items():
            self._coverage.check(name, tensor)
            held = tensor.detach().clone()
            self._coverage.record(name, held)
            self.tensors[name] = held.to(device=self.needs.device, dtype=self.needs.dtype)

    def receipt(self, seconds: float) -> Receipt:
        """Return the proof that every tensor came."""
        return self._coverage.receipt(seconds)
