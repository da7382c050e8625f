"""Which kind of device a run takes, and whether there are enough of them.

Knows: what was asked for, what the machine shows, what the chosen backends run on.
Does not know: any kind of device (the role `device`), or who owns one (the scheduler).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from areal_core.contract.device import CPU
from areal_core.contract.errors import ResourceError
from areal_core.plugins.devices import device_named
from areal_core.plugins.registry import Registry


def choose_device(
    wanted: str, devices: Mapping[str, int], backends: Sequence[tuple[str, str]], registry: Registry
) -> str:
    """Return the kind of device a run takes; `auto` never takes the cpu where an accelerator is visible.

    Args:
        devices: how many of each kind this run may use.
        backends: role and name of every backend the run has chosen.

    Raises:
        BackendNotFound: no such kind; tells those there are.
        ResourceError: the machine shows none of the kind, or for `auto` none the backends run on.
    """
    if wanted != "auto":
        device_named(registry, wanted)
        if wanted != CPU and not devices.get(wanted):
            raise ResourceError(
                f"device={wanted}, but this machine shows none",
                why=f"devices seen: {_told(devices)}",
                fix="set device=cpu, or check the driver with: areal doctor",
            )
        return wanted
    seen = [kind for kind, count in devices.items() if count and not device_named(registry, kind).stand_in]
    reasons = []
    for kind in seen:
        lacking = [
            f"{role} backend {name!r}" for role, name in backends if kind not in registry.describe(role, name).devices
        ]
        if not lacking:
            return kind
        reasons.append(f"{' and '.join(dict.fromkeys(lacking))} cannot run on {kind}")
    if reasons:
        raise ResourceError(
            f"device=auto would leave the accelerators of this machine unused: {_told(devices)}",
            why="; ".join(reasons),
            fix="set device=cpu if that is meant, or choose backends that run there: areal backends",
        )
    return CPU


def check_enough(wanted: Mapping[str, int], device: str, devices: Mapping[str, int]) -> None:
    """Refuse a run that needs more devices than it may use; `wanted` is how many each role owns.

    Raises:
        ResourceError: tells who wants how many.
    """
    total = sum(wanted.values())
    if device != CPU and total > devices[device]:
        raise ResourceError(
            f"the run needs {total} {device} devices, {devices[device]} are here",
            why=f"{', '.join(f'{role} {count}' for role, count in wanted.items())}; every rank owns its device",
            fix="make the layouts smaller, for example actor.backend=fsdp:d1, or take turns: placement=shared",
        )


def stand_in_warnings(device: str, registry: Registry) -> list[str]:
    """Return what a run on a stand-in leaves open, so that nobody takes it for the real device."""
    said = device_named(registry, device).stand_in
    return [f"{device} is a stand-in. {said}"] if said else []


def _told(devices: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in devices.items() if count) or "only the cpu"
