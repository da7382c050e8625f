"""A teacher that is a fleet of an inference engine, started with the run: what it is in a yaml, and in a plan.

Knows: which keys of a run become those of a second fleet.
Does not know: how it is asked (`scoring_teacher`).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen, validators

from areal_core.config.backend import parse_backend
from areal_core.config.placement import PlacementConfig
from areal_core.config.plan import Plan, check_room, check_vocabularies
from areal_core.config.role_checks import check_environment
from areal_core.config.role_plan import plan_rollout_role
from areal_core.config.schema import Options
from areal_core.contract.errors import PlanError
from areal_core.contract.inference import SamplingParams
from areal_core.plugins.extensions import ModelHub, extension
from areal_core.plugins.registry import Registry

ROLE = "teacher"
"""The role its workers have."""


@frozen(kw_only=True)
class ScorerConfig:
    """A teacher on an inference engine of this run, which claims `scoring`.

    Example: ScorerConfig(path="/models/Qwen3-8B", backend="vllm:d2")
    """

    path: str = field(validator=validators.min_len(1))
    """The teacher's model: a folder or a name on the hub. Of the student's tokens."""
    backend: str = "reference:d1"
    """Inference engine and its layout, for example vllm:d2t2: 2 replicas of 2 tensor ranks."""
    options: Options = field(factory=dict, metadata={"role": "infer", "named_by": "backend"})
    """The engine's own keys: `areal backends NAME` shows them."""
    python: str | None = None
    """Another interpreter for its workers, for engines that pin their own torch."""
    dtype: str | None = None
    """Of its weights; None takes `model.dtype`."""
    cpus_per_replica: int = field(default=1, validator=validators.ge(1))
    """Processors kept for each replica."""
    placement: PlacementConfig = PlacementConfig()
    """Of each of its workers."""
    concurrency: int = field(default=16, validator=validators.ge(1))
    """Answers that one replica judges at once."""


def with_scorer(
    plan: Plan, scorer: ScorerConfig, registry: Registry, devices: Mapping[str, int], *, installed: bool
) -> tuple[Plan, str]:
    """Return the plan with the teacher's fleet among its roles, and the teacher's path, which may have been pinned.

    Raises:
        ConfigError, PluginError, ResourceError: as `make_plan`, of the teacher.
    """
    config, student = plan.config, plan.roles[-1]
    if scorer.options.get("url"):
        raise PlanError(
            "options.scorer.options.url is set",
            why="a server that is there already is no engine of this run",
            fix="name it under options.served: {url: ..., model: ...}",
        )
    registry.options("infer", parse_backend(scorer.backend).name, scorer.options, "options.scorer.options")
    rollout = evolve(
        config.rollout,
        sampling=SamplingParams(),
        adapters={},
        **{name: getattr(scorer, name) for name in ("backend", "options", "python", "dtype")},
        **{name: getattr(scorer, name) for name in ("cpus_per_replica", "placement")},
    )
    asked = evolve(
        config, model=evolve(config.model, path=scorer.path), actor=evolve(config.actor, path=None), rollout=rollout
    )
    hub: ModelHub | None = extension("hub")
    asked = hub.pinned(asked) if hub else asked
    planned = plan_rollout_role(asked, registry, student.device, generating=True)
    registry.require("infer", planned.backend.name, "scoring", device=student.device)
    manifest = registry.describe("infer", planned.backend.name)
    warnings = check_environment(rollout, manifest, student.device) if installed else []
    roles = (*plan.roles[:-1], evolve(planned, role=ROLE), student)
    check_room(config, registry, list(roles), devices)
    check_vocabularies(list(roles))
    return evolve(plan, roles=roles, warnings=(*plan.warnings, *warnings)), asked.model.path
