"""What this plugin adds besides its engine: the checkpoint format `megatron` of `areal convert`.

Knows: that a hook module imports nothing heavy.
Does not know: the format.
"""

from __future__ import annotations

from areal_core.plugins.hooks import hookimpl


@hookimpl
def areal_checkpoint_formats() -> list[object]:
    """Add Megatron-Core's distributed checkpoints."""
    from areal_megatron.checkpoint import MegatronFolder

    return [MegatronFolder()]
