"""What a run asks its workers to trace: `profile: {steps: [5, 6]}` of a yaml, as variables of their environment.

Knows: the keys of `profile`, and how they travel.
Does not know: how a step is traced (`traces`).
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
