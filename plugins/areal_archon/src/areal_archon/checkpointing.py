"""What a checkpointed layer keeps besides its input.

Knows: the operations whose results cost most to compute again.
Does not know: layers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_KEPT = (
    "mm",
    "addmm",
    "bmm",
    "_grouped_mm",
    "_scaled_mm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""What a checkpoint runs forward in, and what it runs again in. Any: nobody reads what they give."""


def keep_products() -> Contexts:
    """Return the contexts of a checkpoint that keeps matrix products and attention, and recomputes all else."""
    kept = {getattr(torch.ops.aten, name).default for name in _KEPT if hasattr(torch.ops.aten, name)}
    contexts: Contexts = create_selective_checkpoint_contexts(partial(_policy, kept))  # type: ignore[no-untyped-call]
    return contexts


def _policy(kept: set[object], context: object, operation: object, *args: Any, **options: Any) -> CheckpointPolicy:
    """Decide about one call. Any: whatever operations take."""
    return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE
