"""The actor's adapter: whether anybody can train it, what it begins as, and whether it travels alone; others beside it.

Knows: LoraSpec, the claims `weights.adapter` and `lora.adapters`.
Does not know: how a folder says what it holds (the extension `adapter_config`), tensors, or layers of a model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from areal_core.config.schema import AUTO, RolloutConfig, RunConfig
from areal_core.contract.errors import CapabilityError, PlanError
from areal_core.contract.train import LoraSpec
from areal_core.plugins.extensions import ReadAdapter, need
from areal_core.plugins.registry import Registry

if TYPE_CHECKING:
    from areal_core.config.role_plan import RolePlan

CLAIM = "weights.adapter"


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
    return {name: _read(f"rollout.adapters.{name}", path, by_engine=True) for name, path in rollout.adapters.items()}


def _begun(at: str, spec: LoraSpec) -> LoraSpec:
    """Return the spec with rank, alpha and targets of the folder it begins as."""
    own = _read(f"{at}.path", spec.path)
    for name in ("rank", "alpha", "targets"):
        given, its = getattr(spec, name), getattr(own, name)
        if given and (sorted(given) != sorted(its) if name == "targets" else given != its):
            raise PlanError(
                f"{at}.{name} is {given}", why=f"the adapter in {at}.path has {its}", fix=f"leave {at}.{name} out"
            )
    return own


def _read(key: str, path: str, *, by_engine: bool = False) -> LoraSpec:
    read: ReadAdapter = need("adapter_config", f"an adapter folder ({key})")
    return read(key, path, by_engine)
