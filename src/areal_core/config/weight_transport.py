"""Which transports may carry a run's weights, how engines pause with each, and the choice once workers have a place.

Knows: claims of engines and transports, and that some transports stay within one host.
Does not know: how bytes travel, or where a scheduler puts workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from areal_core.config.schema import AUTO, SHARED, RunConfig
from areal_core.contract.errors import CapabilityError, PlanError, PluginError
from areal_core.contract.inference import PauseMode
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure

if TYPE_CHECKING:
    from areal_core.config.role_plan import RolePlan

_PREFERRED = ("shm", "collective", "disk")
"""What `auto` tries, in order."""


@frozen(kw_only=True)
class TransportPlan:
    """One transport a run may use.

    `pause` None means weights change without pausing generation; `staged` means the engine
    takes new weights beside the ones it serves.
    """

    name: str
    pause: PauseMode | None
    staged: bool
    across_hosts: bool


def plan_transports(
    config: RunConfig, registry: Registry, rollout: RolePlan, num_hosts: int
) -> tuple[TransportPlan, ...]:
    """Return the transports that may be used, the preferred one first; `num_hosts` is the most any role asks for.

    Raises:
        CapabilityError: the engine takes weights by none of them.
        PlanError: the one asked for stays within one host, and the run is on several.
    """
    wanted = config.weight_sync.transport
    plans, refused = list[TransportPlan](), list[PluginError]()
    for name in _PREFERRED if wanted == AUTO else (wanted,):
        try:
            plans.append(_plan(config, registry, rollout, name))
        except PluginError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    plans = [plan for plan in plans if plan.across_hosts or num_hosts < 2]
    if not plans:
        raise _confined(wanted, f"a role asks for {num_hosts} hosts")
    return tuple(plans)


def choose_transport(
    plans: Sequence[TransportPlan], hosts: Iterable[str], is_here: Callable[[str], bool]
) -> tuple[TransportPlan, str]:
    """Return the transport for workers at these addresses, and the reason; `is_here` tells this machine's addresses.

    Raises:
        PlanError: the workers are on several hosts, and no transport reaches across.
    """
    apart = sorted(set(hosts))
    if len(apart) == 1 and is_here(apart[0]):
        return plans[0], f"the controller and all workers are on one host, {apart[0]}"
    why = f"workers are on {', '.join(apart)}" + ("" if len(apart) > 1 else ", the controller is elsewhere")
    for plan in plans:
        if plan.across_hosts:
            return plan, why
    raise _confined(plans[0].name, why)


def reachable(registry: Registry, name: str, options: Mapping[str, Any], **where: str) -> Mapping[str, Any]:
    """Return a transport's options with those of `where` that it has and that are not set: where workers reach it.

    Any: values of options.
    """
    known = registry.options("transport", name, options)
    return {**{key: value for key, value in where.items() if hasattr(known, key)}, **options}


def claims(config: RunConfig, registry: Registry, rollout: RolePlan, key: str, transport: str = "") -> bool:
    """Tell whether the engine claims an ability, as its options and the transport have it."""
    facts = _facts(config, registry, rollout, transport)
    try:
        registry.require("infer", rollout.backend.name, key, device=rollout.device, facts=facts)
    except CapabilityError:
        return False
    return True


def _plan(config: RunConfig, registry: Registry, rollout: RolePlan, name: str) -> TransportPlan:
    given = registry.describe("transport", name).claims
    across, streams = given.get("across_hosts"), given.get("streams")
    if config.placement == SHARED and streams is not None and streams.claimed:
        raise CapabilityError(
            f"weights cannot travel by {name} with placement=shared",
            why="it keeps both ends at work at the same time, and only one of them has the devices",
            fix="set weight_sync.transport=auto",
        )
    registry.check_engine("transport", name)
    registry.require("infer", rollout.backend.name, f"transport.{name}", device=rollout.device)
    return TransportPlan(
        name=name,
        pause=_choose_pause(config, registry, rollout, name),
        staged=claims(config, registry, rollout, "weights.staged", name),
        across_hosts=across is not None and across.claimed,
    )


def _choose_pause(config: RunConfig, registry: Registry, rollout: RolePlan, transport: str) -> PauseMode | None:
    wanted = "abort" if config.placement == SHARED else config.weight_sync.pause
    needed = {
        "none": ("weights.staged", "weights.in_flight"),
        "keep": ("pause.keep", "weights.in_flight"),
        "abort": ("pause.abort",),
    }
    facts = _facts(config, registry, rollout, transport)
    for mode in needed if wanted == "auto" else (wanted,):
        try:
            for key in needed[mode]:
                registry.require("infer", rollout.backend.name, key, device=rollout.device, facts=facts)
        except CapabilityError:
            if wanted != "auto":
                raise
            continue
        return None if mode == "none" else PauseMode(mode)
    raise CapabilityError(
        f"infer backend {rollout.backend.name!r} cannot change weights under load",
        why="it claims neither weights.in_flight nor pause.keep nor pause.abort",
        fix="choose another backend: areal backends --role infer",
    )


def _facts(config: RunConfig, registry: Registry, rollout: RolePlan, transport: str) -> dict[str, str]:
    """Return what conditions of the engine's claims may name: its plain options, and the transport."""
    options = registry.options("infer", rollout.backend.name, rollout.options, "rollout.options")
    plain = unstructure(options) if options is not None else dict(rollout.options)
    told = {key: value for key, value in plain.items() if isinstance(value, str | bool | int)}
    words = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in told.items()}
    return {**words, **({"transport": transport} if transport else {})}


def _confined(transport: str, why: str) -> PlanError:
    return PlanError(
        f"weights cannot travel by {transport}: it stays within one host",
        why=why,
        fix="set weight_sync.transport to auto, collective, or disk with a folder that every host sees",
    )
