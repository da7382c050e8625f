"""The actor's adapter: whether anybody can train it, what it begins as, and whether it travels alone; others beside it.

Knows: LoraSpec, adapter_config.json as PEFT writes it, the claims `weights.adapter` and `lora.adapters`.
Does not know: tensors of an adapter, or layers of a model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from areal_core.config.model_folder import local_folder, read_json
from areal_core.config.schema import AUTO, RolloutConfig, RunConfig
from areal_core.contract.errors import CapabilityError, ModelError, PlanError
from areal_core.contract.train import LoraSpec
from areal_core.plugins.registry import Registry

if TYPE_CHECKING:
    from areal_core.config.role_plan import RolePlan

CLAIM = "weights.adapter"
CONFIG = "adapter_config.json"
_OTHER = (
    *("bias", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform"),
    *("fan_in_fan_out", "trainable_token_indices", "target_parameters"),
)
"""Entries of adapter_config.json that, unless empty, make another model than W + scale B A."""


def plan_lora(role: str, spec: LoraSpec) -> LoraSpec:
    """Return an adapter with what it leaves to the folder it begins as filled in.

    Raises:
        PlanError: no engine can train it; names the key.
        ModelError: its folder holds no adapter that is one.
    """
    at = f"{role}.lora"
    if role != "actor":
        raise PlanError(f"{at} is set", why="only the actor trains an adapter", fix=f"remove {at}")
    if spec.path:
        spec = _begun(at, spec)
    if spec.rank < 1:
        raise PlanError(f"{at}.rank is {spec.rank}", why="it must be at least 1", fix="for example 16")
    if not spec.alpha > 0:
        raise PlanError(f"{at}.alpha is {spec.alpha:g}", why="it must be above 0", fix="for example twice the rank")
    if not spec.targets:
        raise PlanError(f"{at}.targets is empty", why="no layer would be trained", fix="for example [q_proj, v_proj]")
    return spec


def travels(config: RunConfig, registry: Registry, actor: RolePlan, rollout: RolePlan) -> bool:
    """Tell whether the actor's adapter travels alone.

    Raises:
        PlanError: `weight_sync.lora` is set and there is no adapter.
        CapabilityError: it was asked for, or the adapter begins as a folder, and a side does not claim it.
    """
    wanted = config.weight_sync.lora
    if actor.lora is None:
        if wanted != AUTO:
            raise PlanError(f"weight_sync.lora={wanted}", why="the actor trains no adapter", fix="set actor.lora")
        return False
    if wanted == "merged" and not actor.lora.path:
        return False
    try:
        registry.require("train", actor.backend.name, CLAIM, device=actor.device)
        registry.require("infer", rollout.backend.name, CLAIM, device=rollout.device)
        if rollout.placement.num_hosts > 1:
            raise CapabilityError(
                "an adapter does not travel alone to replicas over several hosts",
                fix="set weight_sync.lora to auto or merged, or take rollout.placement.num_hosts out",
            )
    except CapabilityError as error:
        if wanted == AUTO and not actor.lora.path:
            return False
        why = "an adapter that begins as a folder has to be served from the first token on" if actor.lora.path else ""
        raise CapabilityError(error.what, why=why or error.why, fix=error.fix) from None
    if wanted == "merged":
        raise PlanError(
            "weight_sync.lora=merged with actor.lora.path",
            why="the fleet begins with the model folder and would not have the adapter until the first update",
            fix="leave weight_sync.lora out",
        )
    return True


def plan_adapters(rollout: RolloutConfig) -> dict[str, LoraSpec]:
    """Return what stands in the folders of `rollout.adapters`, by name. Raises PlanError (a name), ModelError."""
    if odd := [name for name in rollout.adapters if not re.fullmatch(r"[\w.-]+", name)]:
        raise PlanError(f"rollout.adapters: {odd[0]!r} is no name", why="servers get it", fix="use letters and -")
    others = (*_OTHER, "use_rslora")  # engines read these folders themselves, not all of them with that scale
    return {name: read_lora(f"rollout.adapters.{name}", path, others) for name, path in rollout.adapters.items()}


def _begun(at: str, spec: LoraSpec) -> LoraSpec:
    """Return the spec with rank, alpha and targets of the folder it begins as."""
    own = read_lora(f"{at}.path", spec.path)
    for name in ("rank", "alpha", "targets"):
        given, its = getattr(spec, name), getattr(own, name)
        if given and (sorted(given) != sorted(its) if name == "targets" else given != its):
            raise PlanError(
                f"{at}.{name} is {given}", why=f"the adapter in {at}.path has {its}", fix=f"leave {at}.{name} out"
            )
    return own


def read_lora(key: str, path: str, others: tuple[str, ...] = _OTHER) -> LoraSpec:
    """Return rank, alpha and targets of a folder in PEFT's format, here or on the hub; errors name the `key`."""
    folder = local_folder(path)
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{key} {path!r} is no adapter folder",
            why=f"it has no {CONFIG}",
            fix="name a folder that peft's save_pretrained wrote, or `adapter` in a model folder of a run",
        )
    found = read_json(folder / CONFIG)
    rank: Any = found.get("r")  # Any: json
    alpha: Any = found.get("lora_alpha")
    targets: Any = found.get("target_modules")
    plain = type(rank) is int and isinstance(alpha, int | float) and isinstance(targets, list)
    odd = [entry for entry in others if found.get(entry) not in (None, False, "none") and found[entry]]
    if not plain or odd or found.get("peft_type") != "LORA":
        raise ModelError(
            f"the adapter in {key} {path!r} is of another kind",
            why=f"{', '.join(odd) or 'peft_type, r, lora_alpha or target_modules'} in {CONFIG}: only W + "
            "(alpha / rank) B A on layers named one by one is trained and served",
            fix="merge it into the model with peft, and begin a new one",
        )
    scale = rank**0.5 if found.get("use_rslora") else 1.0
    return LoraSpec(rank=rank, alpha=alpha * scale, targets=sorted(targets), path=str(folder.absolute()))
