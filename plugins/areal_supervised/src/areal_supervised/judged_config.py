"""What stands under `options:` of kind `judged`.

Knows: names and ranges.
Does not know: how a judge is asked (`judge_fleet`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_supervised.fleet import FleetConfig
from areal_tasks.rewards.verdict import VerdictConfig

ROLE = "judge"
"""The role of the judge's workers."""


@frozen(kw_only=True)
class JudgedConfig(VerdictConfig):
    """Options of kind `judged`.

    Example: JudgedConfig(judge=FleetConfig(path="/models/Qwen3-8B", backend="vllm:d1"))
    """

    judge: FleetConfig
    """Who judges, as an inference engine of this run: {path: /models/Qwen3-8B, backend: vllm:d1}. Of any tokens."""
    weight: float = 1.0
    """What the score counts, beside `rollout.reward` if there is one: reward = rollout.reward + weight * score."""
    max_tokens: int = field(default=512, validator=validators.ge(1))
    """Of the judge's answer."""
    temperature: float = field(default=0.0, validator=validators.ge(0.0))
    """Of the judge's answer; 0 is greedy."""
    tries: int = field(default=1, validator=validators.ge(1))
    """How often a judge that gives no score is asked, which helps with a temperature; then the episode fails."""
    renderer: str = "auto"
    """The plugin that writes the question as the judge's tokens: its model's family, or `auto`, which finds it."""
    renderer_options: Mapping[str, Any] = field(
        default=Factory(dict), metadata={"role": "renderer", "named_by": "renderer"}
    )  # Any: the renderer's own
    """Options of that renderer, for example {enable_thinking: false}."""
