"""The official names, so that a missing plugin can be answered with one pip command.

Knows: role -> name -> distribution, and command -> distribution, for the plugins this project publishes.
Does not know: what is installed, or anything of third parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CORE = "areal-core"
LOCAL, TASKS, REPORT = "areal-local", "areal-tasks", "areal-report"
OWN = frozenset({CORE, LOCAL, TASKS, REPORT, "areal-torch", "areal-serving"})
"""What a run is made of beside its backends: never left out by AREAL_PLUGINS."""

OFFICIAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "train": {
            "reference": "areal-reference",
            "fsdp": "areal-fsdp",
            "megatron": "areal-megatron",
            "archon": "areal-archon",
            "ascend": "areal-ascend",
        },
        "infer": {
            "reference": "areal-reference",
            "vllm": "areal-vllm",
            "sglang": "areal-sglang",
        },
        "scheduler": {"local": LOCAL},
        "transport": {"disk": LOCAL, "shm": LOCAL, "collective": LOCAL},
        "workflow": {"single_turn": CORE},
        "objective": {"ppo": CORE, "value": CORE, "sft": CORE},
        "dataset": dict.fromkeys(("spell", "long_spell", "chain_sum", "jsonl", "hub"), TASKS),
        "reward": dict.fromkeys(("exact_match", "reasoning_gym", "math_verify"), TASKS),
        "logger": dict.fromkeys(("tensorboard", "trackio", "wandb", "swanlab"), REPORT),
    }
)

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "doctor": "areal-local",
        "quickstart": "areal-tasks",
        "convert": "areal-torch",
        "env": "areal-serving",
        "new": "areal-conformance",
        "conformance": "areal-conformance",
    }
)
"""Command of `areal` that is not the core's own -> the distribution that adds it."""


def official_names(role: str) -> tuple[str, ...]:
    """Return the names this project publishes for a role, in the order of the catalogue."""
    return tuple(OFFICIAL.get(role, {}))


def pip_command(role: str, name: str) -> str:
    """Return `pip install areal-vllm` for an official name, and an empty string for any other."""
    distribution = OFFICIAL.get(role, {}).get(name)
    return f"pip install {distribution}" if distribution else ""
