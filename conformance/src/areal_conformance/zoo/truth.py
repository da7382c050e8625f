"""The truth about a drawn model: transformers' own forward pass and autograd, under the names its folder has.

Knows: that transformers fuses and renames what some families store.
Does not know: which families.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from areal_conformance.oracles.train import Oracle


class Truth(Oracle):
    """The oracle of any family."""

    def stored(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of parameters under the names a folder has."""
        return dict(revert_weight_conversion(self.model, dict(named)))
