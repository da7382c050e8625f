"""A teacher that is a fleet of an inference engine, started with the run.

Knows: what such a teacher has to be.
Does not know: how it is asked (`scoring_teacher`), or what a fleet beside the policy is (`fleet`).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen, validators

from areal_core.config.plan import Plan, check_vocabularies
from areal_core.plugins.registry import Registry
from areal_supervised.fleet import Beside, FleetConfig, with_fleet

ROLE = "teacher"
"""The role its workers have."""
_BESIDE = Beside(
    role=ROLE,
    key="options.scorer",
    by_url="name it under options.served: {url: ..., model: ...}",
    claims=("scoring",),
)


@frozen(kw_only=True)
class ScorerConfig(FleetConfig):
    """A teacher on an inference engine of this run, which claims `scoring`. Its model is of the student's tokens.

    Example: ScorerConfig(path="/models/Qwen3-8B", backend="vllm:d2")
    """

    concurrency: int = field(default=16, validator=validators.ge(1))
    """Answers that one replica judges at once."""


def with_scorer(
    plan: Plan, scorer: ScorerConfig, registry: Registry, devices: Mapping[str, int], *, installed: bool
) -> tuple[Plan, str]:
    """Return the plan with the teacher's fleet among its roles, and the teacher's path, which may have been pinned.

    Raises:
        ConfigError, PluginError, ResourceError: as `make_plan`, of the teacher.
    """
    planned, path = with_fleet(plan, scorer, _BESIDE, registry, devices, installed=installed)
    check_vocabularies(list(planned.roles))
    return planned, path
