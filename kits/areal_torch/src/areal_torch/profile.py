"""What a run asks its workers to trace: `profile: {steps: [5, 6]}` of a yaml, as variables of their environment.

Knows: the keys of `profile`, how they travel, and what a trace is called.
Does not know: how a step is traced: `traces` here, `areal_serving.profiling` in servers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen, validators

from areal_core.contract.errors import PlanError
from areal_core.plugins.structure import structure

VARIABLE = "AREAL_PROFILE"


@frozen(kw_only=True)
class ProfileConfig:
    """Which steps torch's profiler records. Example: ProfileConfig(steps=(5, 6))"""

    steps: tuple[int, ...] = field(
        default=(), converter=tuple[int, ...], validator=validators.deep_iterable(validators.ge(1))
    )
    """Numbers of the steps, from 1."""


@frozen(kw_only=True)
class Asked:
    """What one worker is to trace. Example: Asked(folder=Path("run/profile"), role="rollout.1", steps=frozenset({5}))

    `folder` is of all traces of the run; every step has one of its own in it.
    """

    folder: Path
    role: str
    steps: frozenset[int]

    def file(self, step: int, rank: int, what: str = "") -> Path:
        """Return where a trace goes: `step-5/<role>-rank<n>.json.gz` there, `..-rank<n>-<what>.json.gz` with `what`."""
        return self.folder / f"step-{step}" / f"{self.role}-rank{rank}{what and f'-{what}'}.json.gz"

    def make_folder(self, step: int) -> None:
        """Make the folder of a step, its owner's alone.

        Raises:
            OSError: it cannot be made, or somebody removed the run folder, which is not made again.
        """
        for folder in (self.folder, self.folder / f"step-{step}"):
            folder.mkdir(mode=0o700, exist_ok=True)


def asked_of(environ: Mapping[str, str], replica: int = 0) -> Asked:
    """Return what the environment asks for. Replicas are called as their workers are: `rollout`, `rollout.1`, .."""
    told = json.loads(environ.get(VARIABLE, '{"folder": "", "role": "", "steps": []}'))
    role = f"{told['role']}.{replica}" if replica else told["role"]
    return Asked(folder=Path(told["folder"]), role=role, steps=frozenset(told["steps"]))


def profile_variables(options: Mapping[str, Any], steps: int, folder: Path, role: str) -> Mapping[str, str]:
    """Return what makes the workers of a role trace; nothing if no step is asked for. Extension `profile` of the core.

    Args:
        options: what stands under `profile:`.
        steps: of the run.
        folder: the run's.
        role: the workers', for example `actor`.

    Raises:
        ConfigError: an unknown key or a value of the wrong type, or a step the run does not have.
    """
    wanted = structure(ProfileConfig, options, "profile").steps
    if beyond := [step for step in wanted if step > steps]:
        raise PlanError(
            f"profile.steps names step {beyond[0]}",
            why=f"the run has the steps 1 to {steps}: nothing would be traced",
            fix=f"name steps up to {steps}, or set steps={beyond[0]}",
        )
    if not wanted:
        return {}
    return {VARIABLE: json.dumps({"folder": str(folder / "profile"), "role": role, "steps": sorted(set(wanted))})}
