"""Another model on an inference engine, started with the run: what it is in a yaml, and in a plan.

Knows: which keys of a run become those of a second fleet.
Does not know: what it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen, validators

from areal_core.config.backend import parse_backend
from areal_core.config.placement import PlacementConfig
from areal_core.config.plan import Plan, check_room
from areal_core.config.role_plan import check_environment, plan_rollout_role
from areal_core.config.schema import Options
from areal_core.contract.errors import PlanError
from areal_core.contract.inference import SamplingParams
from areal_core.plugins.extensions import ModelHub, extension
from areal_core.plugins.registry import Registry


@frozen(kw_only=True)
class FleetConfig:
    """A model beside the policy, on an inference engine of this run.

    Example: FleetConfig(path="/models/Qwen3-8B", backend="vllm:d2")
    """

    path: str = field(validator=validators.min_len(1))
    """Its model: a folder or a name on the hub."""
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


@frozen(kw_only=True)
class Beside:
    """What a fleet is for."""

    role: str
    """The role its workers have."""
    key: str
    """Where it stands in a yaml, for example `options.scorer`."""
    by_url: str
    """How a server that is there already is named in its place."""
    claims: tuple[str, ...] = ()
    """What its engine has to claim."""


def with_fleet(
    plan: Plan, fleet: FleetConfig, beside: Beside, registry: Registry, devices: Mapping[str, int], *, installed: bool
) -> tuple[Plan, str]:
    """Return the plan with the fleet among its roles, and its model's path, which may have been pinned.

    Raises:
        ConfigError, PluginError, ResourceError: as `make_plan`, of the fleet.
    """
    config, policy = plan.config, plan.roles[-1]
    if fleet.options.get("url"):
        raise PlanError(
            f"{beside.key}.options.url is set",
            why="a server that is there already is no engine of this run",
            fix=beside.by_url,
        )
    registry.options("infer", parse_backend(fleet.backend).name, fleet.options, f"{beside.key}.options")
    rollout = evolve(
        config.rollout,
        sampling=SamplingParams(),
        adapters={},
        **{name: getattr(fleet, name) for name in ("backend", "options", "python", "dtype")},
        **{name: getattr(fleet, name) for name in ("cpus_per_replica", "placement")},
    )
    asked = evolve(
        config, model=evolve(config.model, path=fleet.path), actor=evolve(config.actor, path=None), rollout=rollout
    )
    hub: ModelHub | None = extension("hub")
    asked = hub.pinned(asked) if hub else asked
    planned = plan_rollout_role(asked, registry, policy.device, generating=True)
    for claim in beside.claims:
        registry.require("infer", planned.backend.name, claim, device=policy.device)
    manifest = registry.describe("infer", planned.backend.name)
    warnings = check_environment(rollout, manifest, policy.device) if installed else []
    roles = (*plan.roles[:-1], evolve(planned, role=beside.role), policy)
    check_room(config, registry, list(roles), devices)
    return evolve(plan, roles=roles, warnings=(*plan.warnings, *warnings)), asked.model.path
