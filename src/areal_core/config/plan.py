"""From a configuration to a runnable plan, or one good error before any model loads.

Knows: manifests and claims, the model folder, what fits with what.
Does not know: how to start anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs
from attrs import frozen

from areal_core.algorithms.config import GROUP_ESTIMATORS, NormLevel
from areal_core.algorithms.plan import critic_spec, estimator_spec, objective_spec
from areal_core.config.backend import parse_backend
from areal_core.config.devices import check_enough, choose_device, stand_in_warnings
from areal_core.config.lora import travels
from areal_core.config.model_folder import ModelFolder
from areal_core.config.placement import check_placements
from areal_core.config.role_plan import RolePlan, check_environment, plan_rollout_role, plan_train_role
from areal_core.config.sampling import check_sampling
from areal_core.config.schema import AUTO, RL, SEPARATE, Options, RunConfig
from areal_core.config.shared import by_turns
from areal_core.config.weight_transport import TransportPlan, claims, plan_transports
from areal_core.contract.errors import CapabilityError, ConfigError, PlanError
from areal_core.contract.train import Head, ObjectiveSpec
from areal_core.contract.version import ageing
from areal_core.plugins.devices import count_visible
from areal_core.plugins.extensions import CheckAlgorithm, DescribeMachine, DescribePlan, ModelHub, extension, need
from areal_core.plugins.registry import Registry

_ALL_TAKEN = "rollout.dynamic_batch does nothing without rollout.accept: no group is left out of a batch"
_TIMING = "rollout.max_staleness is above 0: which weights generate a token depends on time; areal replay repeats a run"


@frozen(kw_only=True)
class Plan:
    """A run that can be started."""

    config: RunConfig
    roles: tuple[RolePlan, ...]
    transports: tuple[TransportPlan, ...]
    """What may carry the weights, the preferred one first; where workers were placed decides; empty: nobody."""
    objective: ObjectiveSpec
    critic_objective: ObjectiveSpec | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        """Return who runs where, as people read it: the extension `plan_text`, or a line for each role without it."""
        describe: DescribePlan | None = extension("plan_text")
        return describe(self) if describe else "\n".join(f"{role.role}: {role.backend}" for role in self.roles)

    def role(self, name: str) -> RolePlan:
        """Return one role; KeyError if the run has none of that name."""
        return {role.role: role for role in self.roles}[name]


@runtime_checkable
class PlansRuns(Protocol):
    """The half of a kind of run that planning asks; `areal_core.loop.run.MakesRuns` is the other."""

    def plan(self, config: RunConfig, registry: Registry, devices: Mapping[str, int]) -> Plan:
        """Return the plan of a run of this kind, or raise as `make_plan` does, whose `installed` it may take too."""


def plan_here(config: RunConfig, registry: Registry, assume: str = "") -> Plan:
    """Return the plan for this machine, or for one described as `cuda:8x80GB`, and warn of what cannot fit there."""
    for file in config.imports:
        registry.add_file(Path(file))  # a kind of device may be among what it brings
    describe: DescribeMachine | None = need("machine", "--assume") if assume else extension("machine")
    if describe is None:
        return make_plan(config, registry, count_visible(registry, os.environ))
    devices, misfits = describe(assume, registry)
    plan = make_plan(config, registry, devices, installed=not assume)
    return attrs.evolve(plan, warnings=(*plan.warnings, *misfits(plan)))


def make_plan(
    config: RunConfig,
    registry: Registry,
    devices: Mapping[str, int],
    *,
    generating: bool = True,
    installed: bool = True,
) -> Plan:
    """Check everything that can be checked without loading a model.

    Args:
        devices: how many accelerators of each type this run may use, for example {"cuda": 8}.
        generating: False for a replay, which needs no inference worker and no engine for one.
        installed: False for a plan of another machine, which may have environments of engines that this one lacks.

    Raises:
        ConfigError, PluginError, ResourceError: the first thing that cannot work, what, why, fix.
    """
    for file in config.imports:
        registry.add_file(Path(file))
    hub: ModelHub | None = extension("hub")
    config = hub.pinned(config) if hub else config
    if config.kind != RL:
        for key, value, other, what in (
            ("placement", config.placement, SEPARATE, "has a trainer and a fleet that can take turns"),
            ("rollout.processes", config.rollout.processes, 0, "makes its episodes elsewhere than in the controller"),
        ):
            if value != other:
                why = f"only a run of kind rl {what}"
                raise PlanError(f"{key}={value} with kind={config.kind}", why=why, fix=f"set {key}={other}")
        kind = registry.build("kind", config.kind, config.options, "options")
        assert isinstance(kind, PlansRuns)
        asks = {"installed": installed} if "installed" in signature(kind.plan).parameters else {}
        return kind.plan(config, registry, devices, **asks)
    if config.options:
        raise PlanError(
            "options are set and kind is rl",
            why="they belong to another kind of run",
            fix="set kind (areal backends --role kind), or algorithm.objective.options, actor.options, rollout.options",
        )
    config, turns = by_turns(config if generating else attrs.evolve(config, placement=SEPARATE))
    device = _device(config, registry, devices, infer=True)
    roles = _train_roles(config, registry, device)
    rollout = plan_rollout_role(config, registry, device, generating)
    alone = bool(roles) and travels(config, registry, roles[0], rollout)  # who only generates has no actor
    roles.append(attrs.evolve(rollout, lora=roles[0].lora if alone else None))
    infer = registry.describe("infer", roles[-1].backend.name)
    engine_warnings = check_environment(config.rollout, infer, device) if generating and installed else []
    check_room(config, registry, roles, devices)
    _check_names(config, registry)
    _check_rollout(config, roles[-1].model)
    check_vocabularies(roles)
    _check_routes(config, registry, roles)
    _check_watch(config)
    check_algorithm: CheckAlgorithm = need("algorithm_checks", "a run")
    warnings = [
        *turns,
        *stand_in_warnings(device, registry),
        *engine_warnings,
        *([_TIMING] if config.deterministic and config.rollout.max_staleness and generating else ()),
        *([_ALL_TAKEN] if config.rollout.dynamic_batch and not config.rollout.accept else ()),
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


def plan_training(
    config: RunConfig,
    registry: Registry,
    devices: Mapping[str, int],
    objective: ObjectiveSpec,
    *,
    head: Head = Head.CAUSAL_LM,
) -> Plan:
    """Plan a run that trains on a data set and generates nothing: what most kinds beside `rl` do.

    Args:
        devices: as in `make_plan`.
        objective: what the actor minimises.
        head: what sits on the actor's transformer.

    Raises:
        ConfigError, PluginError, ResourceError: as `make_plan`.
    """
    device = _device(config, registry, devices, infer=False)
    roles = _train_roles(config, registry, device, head)
    check_room(config, registry, roles, devices)
    check_vocabularies(roles)
    if not roles[0].model.has_tokenizer:
        raise _no_tokenizer(roles[0].model)
    _check_named(_named(config, registry), registry)
    _check_watch(config)
    registry.build("objective", objective.name, objective.config, "options")
    return Plan(
        config=config,
        roles=tuple(roles),
        transports=(),
        objective=objective,
        critic_objective=None,
        warnings=(*_ageing(config, registry, roles, ()), *stand_in_warnings(device, registry)),
    )


def _device(config: RunConfig, registry: Registry, devices: Mapping[str, int], *, infer: bool) -> str:
    """Return the kind of device the run is on."""
    if _reaches_beyond(config, registry) and config.device != "auto":
        return config.device
    backends = [("train", parse_backend(role.backend).name) for role in config.train_roles.values()]
    backends += [("infer", parse_backend(config.rollout.backend).name)] if infer else []
    return choose_device(config.device, devices, backends, registry)


def _train_roles(config: RunConfig, registry: Registry, device: str, head: Head = Head.CAUSAL_LM) -> list[RolePlan]:
    heads = {"actor": head, "critic": Head.VALUE}
    return [
        plan_train_role(name, role, config, registry, device, heads.get(name, Head.CAUSAL_LM))
        for name, role in config.train_roles.items()
    ]


def check_room(config: RunConfig, registry: Registry, roles: list[RolePlan], devices: Mapping[str, int]) -> None:
    """Refuse more devices than there are, and placements that cannot be."""
    if not _reaches_beyond(config, registry):
        owners = [role for role in roles if not role.placement.owner]
        asked = {role.role: role.num_workers * role.devices_per_worker for role in owners}
        check_enough(asked, roles[0].device, devices)
    _check_placements(config, registry, roles)


def _check_watch(config: RunConfig) -> None:
    """Have whoever reads them say what is wrong with `guard:` and `profile:`."""
    if config.guard:
        need("watch", "guard:")(config.guard, print, print)
    if config.profile:
        need("profile", "profile:")(config.profile, config.steps, Path(), "")


def _ageing(
    config: RunConfig, registry: Registry, roles: list[RolePlan], transports: tuple[TransportPlan, ...]
) -> list[str]:
    """Return a warning for each plugin of the run that was written for a contract long past."""
    used = [(role.engine_role, role.backend.name) for role in roles]
    used += [("scheduler", config.scheduler.backend), *(("transport", plan.name) for plan in transports)]
    told = ((f"{role} {name!r}", ageing(role, registry.describe(role, name).contract)) for role, name in set(used))
    return sorted(f"{what} was {text}" for what, text in told if text)


def check_vocabularies(roles: list[RolePlan]) -> None:
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
    for role in roles:
        if role.engine_role == "infer" and role.placement.num_hosts > 1:
            _check_spans(config, registry, role)
    together = [role.devices_per_worker if role.engine_role == "infer" else role.num_workers for role in roles]
    sizes = {role.role: (number, own) for role, number, own in zip(roles, together, owned, strict=True)}
    check_placements({role.role: role.placement for role in roles}, sizes, config.scheduler.backend, registry)


def _check_spans(config: RunConfig, registry: Registry, role: RolePlan) -> None:
    """Refuse replicas over several hosts for an engine that has each on one."""
    claim = registry.require("infer", role.backend.name, "replica.hosts", device=role.device)
    if not claims(config, registry, role, "replica.hosts"):
        raise CapabilityError(
            f"{role.backend.name} cannot have a replica on {role.placement.num_hosts} hosts with these options",
            why=claim.why,
            fix=f"change {role.role}.options, or take {role.role}.placement.num_hosts out",
        )


def _check_names(config: RunConfig, registry: Registry) -> None:
    """Ask every plugin the run names whether it is whole, and check its options."""
    rollout, sync = config.rollout, config.weight_sync
    if not rollout.reward.name:
        raise _unnamed("rollout.reward", "reward", registry)
    need("rewards", "a run")
    named = [
        *_named(config, registry),
        ("reward", rollout.reward.name, rollout.reward.options, "rollout.reward"),
        *([("accept", rollout.accept, {}, "rollout.accept")] if rollout.accept else []),
        ("workflow", rollout.workflow.name, rollout.workflow.options, "rollout.workflow"),
    ]
    if sync.transport != AUTO:
        named.append(("transport", sync.transport, sync.options, "weight_sync"))
    elif sync.options:
        raise ConfigError(
            "weight_sync.options are set and weight_sync.transport=auto",
            why="options belong to one transport",
            fix="name it, for example weight_sync.transport=collective",
        )
    _check_named(named, registry)


def _named(config: RunConfig, registry: Registry) -> list[tuple[str, str, Options, str]]:
    """Return role, name, options and key of what a run of any kind names: data, scheduler, loggers."""
    scheduler, evaluation = config.scheduler, config.evaluation
    held_out = {"evaluation.data": evaluation.data} if evaluation.data else {}
    held_out |= {f"evaluation.sets.{name}.data": each.data for name, each in evaluation.sets.items()}
    for key, data in held_out.items():
        if not data.name:
            raise _unnamed(key, "dataset", registry)
    if not config.data.name:
        raise _unnamed("data", "dataset", registry)
    return [
        ("scheduler", scheduler.backend, scheduler.options, "scheduler"),
        ("dataset", config.data.name, config.data.options, "data"),
        *(("logger", logger.name, logger.options, f"loggers[{n}]") for n, logger in enumerate(config.loggers)),
        *(("dataset", data.name, data.options, key) for key, data in held_out.items()),
    ]


def _check_named(named: list[tuple[str, str, Options, str]], registry: Registry) -> None:
    for role, name, options, path in named:
        registry.check_engine(role, name)
        registry.options(role, name, options, f"{path}.options")


def _unnamed(key: str, role: str, registry: Registry) -> PlanError:
    return PlanError(
        f"{key}.name is not set", why=f"a run needs a {role}", fix=f"choose one of: {', '.join(registry.names(role))}"
    )


def _check_groups(config: RunConfig) -> None:
    """Refuse groups of one where something compares the members of a group."""
    rollout, estimator = config.rollout, config.algorithm.advantages.estimator.name
    if rollout.group_size > 1:
        return
    comparing = [f"rollout.accept={rollout.accept}"] if rollout.accept == "mixed" else []
    if estimator in GROUP_ESTIMATORS:
        comparing.append(f"algorithm.advantages.estimator.name={estimator}")
    if comparing:
        raise PlanError(
            f"rollout.group_size=1 with {comparing[0]}",
            why="it compares the answers to one prompt, and there is only one: nothing would be learned",
            fix="set rollout.group_size to 2 or more",
        )


def _check_rollout(config: RunConfig, model: ModelFolder) -> None:
    if not model.has_tokenizer:
        raise _no_tokenizer(model)
    if config.algorithm.minibatches > config.rollout.prompts_per_step:
        raise PlanError(
            f"algorithm.minibatches={config.algorithm.minibatches} of {config.rollout.prompts_per_step} prompts",
            why="a group of samples is never cut, so a minibatch holds at least one prompt",
            fix=f"set algorithm.minibatches to {config.rollout.prompts_per_step} or less",
        )
    _check_groups(config)
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


def _no_tokenizer(model: ModelFolder) -> PlanError:
    return PlanError(
        f"model folder {str(model.path)!r} has no tokenizer",
        why="prompts are turned into token ids with the model's own tokenizer",
        fix="save it beside the weights: tokenizer.save_pretrained(DIR)",
    )
