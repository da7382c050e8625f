"""The official names, so that a missing plugin can be answered with the one command that brings it.

Knows: role -> name -> distribution, and command -> distribution, of the plugins of this project.
Does not know: what is installed, or anything of third parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from areal_core.plugins.install import pip_install

CORE = "areal-core"
DEVICES, LOCAL, TASKS, REPORT = "areal-devices", "areal-local", "areal-tasks", "areal-report"
EPISODES, ALGORITHMS, SUPERVISED, CONFIG = "areal-episodes", "areal-algorithms", "areal-supervised", "areal-config"

OWN = frozenset({CORE, DEVICES, LOCAL, TASKS, REPORT, EPISODES, ALGORITHMS, CONFIG, "areal-torch", "areal-serving"})
"""What a run is made of beside its backends: never left out by AREAL_PLUGINS, and what one lacks is a choice."""

PROOF = "areal-conformance-proof"
"""Its engines prove the conformance suite. They can be named, and are neither listed nor recommended."""

OFFICIAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "train": {
            "reference": "areal-reference",
            "fsdp": "areal-fsdp",
            "megatron": "areal-megatron",
            "archon": "areal-archon",
            "ascend": "areal-ascend",
        },
        "infer": {"reference": "areal-reference", "vllm": "areal-vllm", "sglang": "areal-sglang"},
        "scheduler": {"local": LOCAL},
        "transport": {"disk": LOCAL, "shm": LOCAL, "collective": LOCAL},
        "device": {"cpu": CORE, **dict.fromkeys(("cuda", "mps", "npu", "xpu"), DEVICES)},
        "workflow": {**dict.fromkeys(("single_turn", "critique"), TASKS), "agent": "areal-agents"},
        "objective": dict.fromkeys(("ppo", "value", "sft"), ALGORITHMS)
        | dict.fromkeys(("linear", "teacher_kl"), SUPERVISED),
        "accept": {"mixed": ALGORITHMS},
        "estimator": {
            **dict.fromkeys(("gae", "group_mean", "leave_one_out", "per_turn"), ALGORITHMS),
            **dict.fromkeys(("reinforce++", "reinforce++_baseline"), ALGORITHMS),
            "discounted": SUPERVISED,
        },
        "dataset": dict.fromkeys(
            ("spell", "long_spell", "chain_sum", "jsonl", "hub", "reasoning_gym", "mixture"), TASKS
        ),
        "reward": {
            **dict.fromkeys(("exact_match", "reasoning_gym", "math_verify", "judge"), TASKS),
            **dict.fromkeys(("nothing", "reward_model"), SUPERVISED),
        },
        "logger": dict.fromkeys(("tensorboard", "prometheus", "trackio", "wandb", "swanlab"), REPORT),
        "kind": dict.fromkeys(("sft", "dpo", "ipo", "reward_model", "distill"), SUPERVISED),
    }
)

PLANNED: Mapping[str, tuple[str, ...]] = MappingProxyType({"scheduler": ("ray", "slurm")})
"""Role -> names that are written of and do not exist yet."""

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "algorithms": ALGORITHMS,
        "backends": LOCAL,
        **dict.fromkeys(("config", "completion", "migrate-config"), CONFIG),
        "doctor": LOCAL,
        "scale": LOCAL,
        "quickstart": TASKS,
        **dict.fromkeys(("episodes", "replay"), EPISODES),
        "evaluate": "areal-evaluate",
        "push": "areal-hub",
        **dict.fromkeys(("report", "explain"), REPORT),
        **dict.fromkeys(("view", "trace"), "areal-view"),
        "convert": "areal-torch",
        "env": "areal-serving",
        "new": "areal-conformance",
        "conformance": "areal-conformance",
    }
)
"""Command of `areal` that is not the core's own -> the distribution that adds it."""


def official_names(role: str) -> tuple[str, ...]:
    """Return the names this project has for a role, in the order of the catalogue."""
    return tuple(OFFICIAL.get(role, {}))


def pip_command(role: str, name: str) -> str:
    """Return the command that brings an official name, and an empty string for any other."""
    distribution = OFFICIAL.get(role, {}).get(name)
    if distribution == LOCAL:
        distribution = f"{CORE}[local]"
    return pip_install(distribution) if distribution else ""
