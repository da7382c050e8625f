"""Rotary positions: the frequencies by which a token's place turns queries and keys (arXiv:2104.09864).

Knows: frequencies of a configuration, those of the scaled kinds as transformers computes them.
Does not know: heads or layers, or how an engine wants its angles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_core.contract.errors import ModelError

CHANGE_ANGLES, CHANGE_SIZES = ("linear", "llama3"), ("yarn",)
"""Scalings that do not depend on how long a sequence is; the second also scale cosine and sine."""


def frequencies_of(
    path: str, config: Any, head_dim: int, *, engine: str, kinds: tuple[str, ...]
) -> tuple[Tensor, float]:  # Any: transformers is not typed here
    """Return the frequencies, float32 [D / 2], and what cosine and sine are multiplied by.

    Args:
        kinds: the scalings that `engine` can do, beside none.

    Raises:
        ModelError: another scaling, or one of a part of each head.
    """
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(
            f"model {path!r} rotates only a part of each head",
            why=f"{engine}'s families rotate all of it",
            fix="use the fsdp backend, which takes any model of transformers",
        )
    if kind == "default":
        steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (parameters["rope_theta"] ** steps), 1.0
    if kind not in kinds:
        raise ModelError(
            f"model {path!r} has rotary positions of type {kind!r}",
            why=f"packed sequences share one table of angles, and {engine} knows those of default, {', '.join(kinds)}",
            fix="choose another model or backend, or remove the scaling from its config.json",
        )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.float(), float(scale)
