"""One role of a run, resolved: backend, layout, device, model, memory; what its settings must satisfy.

Knows: manifests and claims, the model folder, what a role needs of its backend, ranges of an optimizer's settings, the
keys that decide which interpreter runs an engine.
Does not know: what fits between roles (`plan`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, fields_dict, frozen

from areal_core.config.backend import BackendString, parse_backend
from areal_core.config.lora import CLAIM, plan_adapters, plan_lora
from areal_core.config.model_folder import ModelFolder, inspect_model
from areal_core.config.placement import PlacementConfig
from areal_core.config.schema import SHARED, RoleConfig, RolloutConfig, RunConfig
from areal_core.config.shared import takes_turns
from areal_core.contract.abilities import asked_of_sampling
from areal_core.contract.errors import CapabilityError, ConfigError, PlanError
from areal_core.contract.train import SCHEDULES, Head, LoraSpec, OptimizerSpec
from areal_core.plugins.extensions import EngineEnvironments, ImageSupport, need
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry

_PARALLEL = {"t": "parallel.tensor", "p": "parallel.pipeline", "c": "parallel.context", "e": "parallel.expert"}
_MASTER_BYTES = 4
"""An fp32 master weight, per parameter."""
_ADAM_BYTES = 16
"""fp32 master weight, gradient and two moments, per parameter."""


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
    head: Head = Head.CAUSAL_LM
    python: str | None = None
    placement: PlacementConfig = PlacementConfig()
    lora: LoraSpec | None = None
    """The adapter the role trains; of the rollout, the shape of those that travel to it, None for whole weights."""
    adapters: Mapping[str, LoraSpec] = Factory(dict)
    """What is served beside the policy, by name."""
    memory_per_worker: int = 0
    """Bytes for weights and optimizer, estimated; activations and cache come on top."""


def plan_train_role(
    name: str, role: RoleConfig, config: RunConfig, registry: Registry, device: str, head: Head = Head.CAUSAL_LM
) -> RolePlan:
    """Resolve a training role. Raises ConfigError or PluginError: what its backend, model or options cannot do."""
    backend = parse_backend(role.backend)
    needs = ["parallel.data"] if backend.data > 1 else []
    dtype = role.dtype or config.model.dtype
    if dtype != "float32":
        needs.append(f"precision.{dtype}")
    if head is Head.VALUE:
        needs.append("head.value")
    frozen = name == "reference"
    if config.checkpoint.background and not frozen:
        needs.append("checkpoint.background")
    if config.placement == SHARED and takes_turns(name, role.placement.owner, device):
        needs.append("memory.offload")
    lora = None if role.lora is None else plan_lora(name, role.lora)
    if lora is not None:
        needs += ["lora", CLAIM] if lora.path else ["lora"]
    _require(registry, "train", backend, needs, device)
    model = inspect_model(role.path or config.model.path, images=True)
    if model.sees:
        images: ImageSupport = need("images", "a model that takes images")
        images.check_role(name, "train", backend.name, model, registry, device)
    registry.check_engine("train", backend.name)
    registry.options("train", backend.name, role.options, f"{name}.options")
    if not frozen:
        check_optimizer(name, role.optimizer)
    each = _MASTER_BYTES if frozen or lora else _ADAM_BYTES
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
        head=head,
        lora=lora,
        memory_per_worker=model.num_parameters * each // backend.world_size,
    )


def plan_rollout_role(config: RunConfig, registry: Registry, device: str, generating: bool) -> RolePlan:
    """Resolve who generates. Raises ConfigError or PluginError: what the backend, model or options cannot do."""
    rollout = config.rollout
    backend = parse_backend(rollout.backend)
    options = rollout.options
    adapters = plan_adapters(rollout)
    shared = config.placement == SHARED and generating
    needs = ("memory.sleep", "pause.abort") if shared else ("lora.adapters",) if adapters else ()
    _require(registry, "infer", backend, (*asked_of_sampling(rollout.sampling), *needs), device)
    config_class = registry.config_class("infer", backend.name)
    if shared and config_class is not None and "sleep" in fields_dict(config_class):
        options = {**options, "sleep": True}  # engines that set memory aside for it are told at start
    if adapters and config_class is not None:  # engines that set memory aside are told for how many
        room = {"max_adapters": len(adapters), "max_adapter_rank": max(each.rank for each in adapters.values())}
        options = {name: value for name, value in room.items() if name in fields_dict(config_class)} | {**options}
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
    copies = 1 if shared else 2  # new weights are held beside those that serve; an engine that slept has none of these
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
        adapters=adapters,
        memory_per_worker=copies * model.num_parameters * (4 if dtype == "float32" else 2),
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


def check_optimizer(role: str, spec: OptimizerSpec) -> None:
    """Refuse settings no engine can follow.

    Args:
        role: whose optimizer it is, `actor` or `critic`.

    Raises:
        PlanError: names the key.
    """
    at = f"{role}.optimizer"
    if spec.schedule not in SCHEDULES:
        raise PlanError(
            f"{at}.schedule is {spec.schedule!r}", why=f"schedules are {', '.join(SCHEDULES)}", fix="choose one of them"
        )
    if not spec.lr > 0:
        raise PlanError(f"{at}.lr is {spec.lr:g}", why="it must be above 0", fix="for example 1e-6")
    for name, beta in zip(("first", "second"), spec.betas, strict=True):
        if not 0 <= beta < 1:
            raise PlanError(
                f"the {name} of {at}.betas is {beta:g}", why="it must be from 0 to below 1", fix="take 0.9, 0.999"
            )
    for name in ("eps", "weight_decay", "max_grad_norm", "warmup_steps", "total_steps", "min_lr_ratio"):
        if getattr(spec, name) < 0:
            raise PlanError(f"{at}.{name} is {getattr(spec, name):g}", why="it must not be negative", fix="0 or more")


def check_environment(rollout: RolloutConfig, manifest: Manifest, device: str) -> list[str]:
    """Return warnings about the interpreter a run would start its servers with.

    Nothing is looked for if the engine runs in the trainer's environment, or its server runs already.

    Raises:
        EngineMissing: there is no such interpreter; the fix is the command that makes one.
    """
    if manifest.environment is None or rollout.options.get("url"):
        return []
    named = rollout.options.get("python") or None
    if named is not None and not isinstance(named, str):
        raise ConfigError(f"rollout.options.python={named!r} is not the path of an interpreter", fix="write a string")
    environments: EngineEnvironments = need("environments", f"inference backend {manifest.name!r}")
    return list(environments.find(manifest, device, python=named, worker=rollout.python).warnings)
