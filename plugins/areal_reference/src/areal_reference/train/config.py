"""Options of the reference trainer, as they stand under `options:` of a training role."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class ReferenceTrainConfig:
    """Few on purpose: this engine is the one to read, not the one to tune."""

    activation_checkpointing: bool = False
    """Keep only each layer's input and compute the rest again in the backward pass."""
