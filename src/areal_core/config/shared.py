"""`placement: shared`: training and generation on the same devices, by turns.

Knows: what turns ask of a run and what they forbid, and who takes part.
Does not know: how devices change hands (`fleet.turns`), nor how much memory a turn needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from areal_core.config.schema import SHARED, RunConfig, StalenessPolicy
from areal_core.contract.device import CPU
from areal_core.contract.errors import PlanError
from areal_core.contract.scheduler import Share, Together

_ACTOR = "actor"
_BESIDE = Together(role=_ACTOR, share=Share.DEVICES)


def by_turns(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return the configuration with what `placement: shared` stands for filled in, and what is to be told about it.

    Raises:
        PlanError: a key asks for what cannot be done by turns.
    """
    if config.placement != SHARED:
        return config, []
    for key, why, fix in _forbidden(config):
        raise PlanError(f"placement=shared with {key}", why=why, fix=fix)
    rollout, sync, lag = config.rollout, config.weight_sync, config.rollout.max_staleness
    placed = evolve(rollout.placement, together_with=_BESIDE)
    rollout = evolve(rollout, max_staleness=0, placement=placed)
    sync = evolve(sync, lora=sync.lora if config.actor.lora is None else "merged")
    told = "placement=shared: training and generation take turns on the same devices and never overlap"
    if lag:
        told += f", so that rollout.max_staleness={lag} is 0 in this run"
    return evolve(config, rollout=rollout, weight_sync=sync), [told]


def takes_turns(role: str, owner: str, device: str) -> bool:
    """Tell whether a training role gives its memory back while the fleet generates: it is where the fleet is."""
    return device == CPU or _ACTOR in (role, owner)


def _forbidden(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yield each key that cannot go with turns, why, and what to do."""
    rollout, sync, lora = config.rollout, config.weight_sync, config.actor.lora
    gone = "an engine that slept has neither base weights nor adapters left"
    if rollout.staleness_policy is StalenessPolicy.DROP:
        why = "nothing is generated while the trainer works, so that nothing becomes too old"
        yield "rollout.staleness_policy=drop", why, "set rollout.staleness_policy=wait"
    if rollout.adapters:
        yield "rollout.adapters", gone, "leave rollout.adapters out, or set placement=separate"
    if lora is not None and lora.path:
        yield "actor.lora.path", gone, "merge the adapter into the model and begin a new one, or set placement=separate"
    if sync.lora == "adapter":
        yield "weight_sync.lora=adapter", gone, "set weight_sync.lora=merged"
    if sync.pause in ("none", "keep"):
        why = "requests are handed back before the fleet sleeps"
        yield f"weight_sync.pause={sync.pause}", why, "set weight_sync.pause=abort, or leave it out"
    if rollout.placement.together_with not in (None, _BESIDE):
        yield "rollout.placement.together_with", "the fleet is placed on the actor's devices", "leave it out"
