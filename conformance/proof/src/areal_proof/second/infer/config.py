"""Options of the second inference engine.

Knows: names and defaults.
Does not know: torch.
"""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class SecondInferenceConfig:
    """Example: SecondInferenceConfig(prefix_entries=0)"""

    prefix_entries: int = field(default=64, validator=validators.ge(0))
    """Prompts whose first distribution is kept for the next request that has the same; 0 keeps none."""
    tool_parser: str = field(default="", validator=validators.in_(("", "hermes")))
    """How the model writes tool calls; "" reads none."""
