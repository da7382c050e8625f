"""From a configuration to a runnable plan, or one good error before any model loads.

Knows: manifests and claims, the model folder, what fits with what.
Does not know: how to start anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.algorithms.config import NormLevel
from areal_core.algorithms.plan import check as check_algorithm
from areal_core.algorithms.plan import critic_spec, estimator_spec, objective_spec
from areal_core.config.backend import BackendString, parse_backend
from areal_core.config.devices import check_enough, choose_device, stand_in_warnings
from areal_core.config.model_folder import ModelFolder, inspect_model
from areal_core.config.placement import PlacementConfig, check_placements
from areal_core.config.role_checks import check_environment, check_lora, check_optimizer
from areal_core.config.sampling import check_sampling
from areal_core.config.schema import AUTO, RoleConfig, RunConfig
from areal_core.config.weight_transport import TransportPlan, claims, plan_transports
from areal_core.contract.abilities import asked_of_sampling
from areal_core.contract.errors import CapabilityError, ConfigError, PlanError
from areal_core.contract.train import ObjectiveSpec
from areal_core.contract.version import ageing
from areal_core.plugins.extensions import ImageSupport, need
from areal_core.plugins.registry import Registry

_PARALLEL = {"t": "parallel.tensor", "p": "parallel.pipeline", "c": "parallel.context", "e": "parallel.expert"}
_MASTER_BYTES = 4
"""An fp32 master weight, per parameter."""
_ADAM_BYTES = 16
"""fp32 master weight, gradient and two moments, per parameter."""
_TIMING = "rollout.max_staleness is above 0: which weights generate a token depends on time; areal replay repeats a run"


@frozen(kw_only=True)
class RolePlan:
    """One role, resolved: which backend, how many workers, on what, from which weights."""

    role: str
    engine_role: str
    backend: BackendString
    num_workers: int
    devices_per_worker: int
    cpus_per_worker: int
    device: str
    dtype: str
    model: ModelFolder
    options: Mapping[str, Any]
    python: str | None = None
    placement: PlacementConfig = PlacementConfig()
    memory_per_worker: int = 0
    """Bytes for weights and optimizer, estimated; activations and cache come on top."""


@frozen(kw_only=True)
class Plan:
    """A run that can be started."""

    config: RunConfig
    roles: tuple[RolePlan, ...]
    transports: tuple[TransportPlan, ...]
    """What may carry the weights, the preferred one first; where workers were placed decides."""
    objective: ObjectiveSpec
    critic_objective: ObjectiveSpec | None
    warnings: tuple[str, ...]

    def role(self, name: str) -> RolePlan:
        """Return one role; KeyError if the run has none of that name."""
        return {role.role: role for role in self.roles}[name]


def make_plan(config: RunConfig, registry: Registry, devices: Mapping[str, int], *, generating: bool = True) -> Plan:
    """Check everything that can be checked without loading a model.

    Args:
        devices: how many accelerators of each type this run may use, for example {"cuda": 8}.
        generating: False for a replay, which needs no inference worker and no engine for one.

    Raises:
        ConfigError, PluginError, ResourceError: the first thing that cannot work, what, why, fix.
    """
    for file in config.imports:
        registry.add_file(Path(file))
    beyond = _reaches_beyond(config, registry)
    named = beyond and config.device != "auto"
    device = config.device if named else choose_device(config.device, devices, _backends(config), registry)
    roles = [_train_role(name, role, config, registry, device) for name, role in config.train_roles.items()]
    roles.append(_rollout_role(config, registry, device, generating))
    infer = registry.describe("infer", roles[-1].backend.name)
    engine_warnings = check_environment(config.rollout, infer, device) if generating else []
    if not beyond:
        owners = [role for role in roles if not role.placement.owner]
        check_enough({role.role: role.num_workers * role.devices_per_worker for role in owners}, device, devices)
    _check_placements(config, registry, roles)
    _check_names(config, registry)
    _check_rollout(config, roles[-1].model)
    _check_vocabularies(roles)
    _check_routes(config, registry, roles)
    if config.guard:
        need("watch", "guard:")(config.guard, print, print)  # says what is wrong with it
    if config.profile:
        need("profile", "profile:")(config.profile, config.steps, Path(), "")
    warnings = [
        *stand_in_warnings(device, registry),
        *engine_warnings,
        *([_TIMING] if config.deterministic and config.rollout.max_staleness and generating else ()),
        *check_sampling(config, roles[-1].model),
        *check_algorithm(
            config.algorithm,
            has_reference=config.reference is not None,
            has_critic=config.critic is not None,
            max_new_tokens=config.rollout.sampling.max_new_tokens,
            max_staleness=config.rollout.max_staleness,
        ),
    ]
    objective = objective_spec(config.algorithm, config.rollout.sampling.max_new_tokens)
    critic = critic_spec(config.algorithm) if config.critic else None
    for path, spec in (("objective", objective), ("critic_objective", critic)):
        if spec is not None:
            registry.build("objective", spec.name, spec.config, f"algorithm.{path}.options")
    estimator = estimator_spec(config.algorithm)
    registry.build("estimator", estimator.name, estimator.options, "algorithm.advantages.estimator.options")
    transports = plan_transports(config, registry, roles[-1], max(role.placement.num_hosts for role in roles))
    return Plan(
        config=config,
        roles=tuple(roles),
        transports=transports,
        objective=objective,
        critic_objective=critic,
        warnings=(*_ageing(config, registry, roles, transports), *warnings),
    )


def _ageing(
    config: RunConfig, registry: Registry, roles: list[RolePlan], transports: tuple[TransportPlan, ...]
) -> list[str]:
    """Return a warning for each plugin of the run that was written for a contract long past."""
    used = [(role.engine_role, role.backend.name) for role in roles]
    used += [("scheduler", config.scheduler.backend), *(("transport", plan.name) for plan in transports)]
    told = ((f"{role} {name!r}", ageing(role, registry.describe(role, name).contract)) for role, name in set(used))
    return sorted(f"{what} was {text}" for what, text in told if text)


def _backends(config: RunConfig) -> list[tuple[str, str]]:
    """Return role and name of every backend that would run on the device."""
    trainers = [("train", parse_backend(role.backend).name) for role in config.train_roles.values()]
    return [*trainers, ("infer", parse_backend(config.rollout.backend).name)]


def _train_role(name: str, role: RoleConfig, config: RunConfig, registry: Registry, device: str) -> RolePlan:
    backend = parse_backend(role.backend)
    needs = ["parallel.data"] if backend.data > 1 else []
    dtype = role.dtype or config.model.dtype
    if dtype != "float32":
        needs.append(f"precision.{dtype}")
    if name == "critic":
        needs.append("head.value")
    frozen = name == "reference"
    if config.checkpoint.background and not frozen:
        needs.append("checkpoint.background")
    if role.lora is not None:
        check_lora(name, role.lora)
        needs.append("lora")
    _require(registry, "train", backend, needs, device)
    model = inspect_model(role.path or config.model.path, images=True)
    if model.sees:
        images: ImageSupport = need("images", "a model that takes images")
        images.check_role(name, "train", backend.name, model, registry, device)
    registry.check_engine("train", backend.name)
    registry.options("train", backend.name, role.options, f"{name}.options")
    if not frozen:
        check_optimizer(name, role.optimizer)
    return RolePlan(
        role=name,
        engine_role="train",
        backend=backend,
        num_workers=backend.world_size,
        devices_per_worker=1,
        cpus_per_worker=role.cpus_per_rank,
        placement=role.placement,
        device=device,
        dtype=dtype,
        model=model,
        options=role.options,
        memory_per_worker=model.num_parameters * (_MASTER_BYTES if frozen else _ADAM_BYTES) // backend.world_size,
    )


def _rollout_role(config: RunConfig, registry: Registry, device: str, generating: bool) -> RolePlan:
    rollout = config.rollout
    backend = parse_backend(rollout.backend)
    options = rollout.options
    _require(registry, "infer", backend, asked_of_sampling(rollout.sampling), device)
    if config.deterministic and generating:
        claim = registry.require("infer", backend.name, "deterministic", device=device)
        options = {**options, "deterministic": True} if claim.condition else options
    if generating and rollout.python is None:
        registry.check_engine("infer", backend.name)
    elif generating and shutil.which(rollout.python or "") is None:
        raise PlanError(
            f"rollout.python={rollout.python} is not an interpreter",
            why="it is neither an executable file nor on the PATH",
            fix="name the python of an environment with areal-local and the engine: /path/to/venv/bin/python",
        )
    registry.options("infer", backend.name, options, "rollout.options")
    # The fleet serves the actor's starting weights.
    model = inspect_model(config.actor.path or config.model.path, images=True)
    if model.sees:
        images: ImageSupport = need("images", "a model that takes images")
        images.check_role("rollout", "infer", backend.name, model, registry, device)
        images.check_processor(model)
    dtype = rollout.dtype or config.model.dtype
    return RolePlan(
        role="rollout",
        engine_role="infer",
        backend=backend,
        num_workers=backend.data if generating else 0,
        devices_per_worker=backend.ranks_per_replica,
        cpus_per_worker=rollout.cpus_per_replica,
        placement=rollout.placement,
        device=device,
        dtype=dtype,
        model=model,
        options=options,
        python=rollout.python,
        memory_per_worker=2 * model.num_parameters * (4 if dtype == "float32" else 2),
    )


def _require(registry: Registry, role: str, backend: BackendString, needs: Sequence[str], device: str) -> None:
    """Refuse a backend that does not run on the device, cannot be split as its layout says, or lacks a need."""
    devices = registry.describe(role, backend.name).devices
    if device not in devices:
        raise CapabilityError(
            f"{role} backend {backend.name!r} does not run on {device}",
            why=f"its manifest names {', '.join(devices)}",
            fix=f"set device={devices[0]}, or choose another backend: areal backends --role {role}",
        )
    axes = [key for axis, key in _PARALLEL.items() if backend.layout.get(axis, 1) > 1]
    for key in (*axes, *needs):
        registry.require(role, backend.name, key, device=device)


def _check_vocabularies(roles: list[RolePlan]) -> None:
    """Every role reads the same token ids."""
    rollout = roles[-1]
    for role in roles:
        if role.model.vocab_size != rollout.model.vocab_size:
            raise PlanError(
                f"{role.role} has {role.model.vocab_size} tokens in its vocabulary, "
                f"the policy {rollout.model.vocab_size}",
                why=f"{role.role} is given the policy's token ids, and would read them as other tokens",
                fix=f"set {role.role}.path to a model of the same family, or leave it out",
            )
        if _sight(role.model) != _sight(rollout.model):
            raise PlanError(
                f"{role.role} is of kind {_kind(role.model)}, the policy of kind {_kind(rollout.model)}",
                why=f"{role.role} is given the policy's images as the policy's own processor prepares them",
                fix=f"set {role.role}.path to a model of the same family, or leave it out",
            )


def _sight(model: ModelFolder) -> tuple[str, int] | None:
    """Return what a model's images depend on, None if it takes none."""
    return None if model.image_token_id is None else (model.model_type, model.image_token_id)


def _kind(model: ModelFolder) -> str:
    return f"{model.model_type!r}, which takes {'no ' if model.image_token_id is None else ''}images"


def _check_routes(config: RunConfig, registry: Registry, roles: list[RolePlan]) -> None:
    """Routes that the fleet records must be taken by everybody who is given its batches."""
    rollout = roles[-1]
    if not rollout.model.experts_per_token or not claims(config, registry, rollout, "experts.trace"):
        return
    for role in roles[:-1]:
        try:
            registry.require("train", role.backend.name, "experts.replay", device=role.device)
        except CapabilityError as error:
            raise CapabilityError(
                f"{rollout.backend.name} records the experts of every token, {role.role} cannot take them",
                why=error.what,
                fix=f"turn off recording in the fleet, or set {role.role}.backend to one that can: {error.fix}",
            ) from None


def _check_placements(config: RunConfig, registry: Registry, roles: list[RolePlan]) -> None:
    owned = [0 if role.device == "cpu" else role.num_workers * role.devices_per_worker for role in roles]
    sizes = {role.role: (role.num_workers, number) for role, number in zip(roles, owned, strict=True)}
    check_placements({role.role: role.placement for role in roles}, sizes, config.scheduler.backend, registry)


def _check_names(config: RunConfig, registry: Registry) -> None:
    """Ask every plugin the run names whether it is whole, and check its options."""
    rollout, evaluation = config.rollout, config.evaluation
    for role, key, name in (("dataset", "data", config.data.name), ("reward", "rollout.reward", rollout.reward.name)):
        if not name:
            raise PlanError(
                f"{key}.name is not set",
                why=f"a run needs a {role}",
                fix=f"choose one of: {', '.join(registry.names(role))}",
            )
    need("rewards", "a run")
    scheduler, sync = config.scheduler, config.weight_sync
    named = [
        ("scheduler", scheduler.backend, scheduler.options, "scheduler"),
        ("dataset", config.data.name, config.data.options, "data"),
        ("reward", rollout.reward.name, rollout.reward.options, "rollout.reward"),
        ("workflow", rollout.workflow.name, rollout.workflow.options, "rollout.workflow"),
        *(("logger", logger.name, logger.options, f"loggers[{n}]") for n, logger in enumerate(config.loggers)),
    ]
    if sync.transport != AUTO:
        named.append(("transport", sync.transport, sync.options, "weight_sync"))
    elif sync.options:
        raise ConfigError(
            "weight_sync.options are set and weight_sync.transport=auto",
            why="options belong to one transport",
            fix="name it, for example weight_sync.transport=collective",
        )
    if evaluation.data is not None:
        named.append(("dataset", evaluation.data.name, evaluation.data.options, "evaluation.data"))
    for role, name, options, path in named:
        registry.check_engine(role, name)
        registry.options(role, name, options, f"{path}.options")


def _check_rollout(config: RunConfig, model: ModelFolder) -> None:
    if not model.has_tokenizer:
        raise PlanError(
            f"model folder {str(model.path)!r} has no tokenizer",
            why="prompts are turned into token ids with the model's own tokenizer",
            fix="save it beside the weights: tokenizer.save_pretrained(DIR)",
        )
    if config.algorithm.minibatches > config.rollout.prompts_per_step:
        raise PlanError(
            f"algorithm.minibatches={config.algorithm.minibatches} of {config.rollout.prompts_per_step} prompts",
            why="a group of samples is never cut, so a minibatch holds at least one prompt",
            fix=f"set algorithm.minibatches to {config.rollout.prompts_per_step} or less",
        )
    if config.rollout.group_size == 1 and config.algorithm.advantages.reward_norm.mean is NormLevel.GROUP:
        raise PlanError(
            "rollout.group_size=1 with algorithm.advantages.reward_norm.mean=group",
            why="a group of one has no baseline: every advantage would be 0",
            fix="set rollout.group_size to 2 or more, or the reward norm's mean to batch or none",
        )


def _reaches_beyond(config: RunConfig, registry: Registry) -> bool:
    """Tell whether the scheduler places workers on other machines, whose devices only it can count."""
    given = registry.describe("scheduler", config.scheduler.backend).claims
    return any(word in given and given[word].claimed for word in ("hosts.spread", "hosts.named"))
