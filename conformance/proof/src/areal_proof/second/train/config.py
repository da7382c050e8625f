"""Options of the second trainer, as they stand under `options:` of a training role."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class SecondTrainConfig:
    """One switch; everything else is in the spec."""

    activation_checkpointing: bool = False
    """Keep only each layer's input and compute the rest again in the backward pass."""
