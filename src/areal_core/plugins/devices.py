"""The role `device`, asked: which kinds there are, and which of them this machine shows.

Knows: the cpu, and how a registry is asked for all kinds at once.
Does not know: any accelerator; `areal-devices` and third parties bring them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from areal_core.contract.device import CPU, REDUCTIONS, Device
from areal_core.contract.errors import BackendBroken, PluginError
from areal_core.plugins.manifest import Manifest

if TYPE_CHECKING:
    from areal_core.plugins.registry import Registry

CPU_MANIFEST = Manifest(
    role="device", name=CPU, contract=(1, 0), factory=f"{__name__}:cpu", summary="the processor: always there"
)

REPEATABLE = {"AREAL_DETERMINISTIC": "1", "OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE", "MKL_CBWR": "AUTO"}
"""The environment of every worker of a deterministic run; the first one tells engines to set their libraries so."""


def cpu() -> Device:
    """Return the cpu. It is not counted: any number of workers share it."""
    return Device(
        name=CPU,
        vendor="any",
        torch_type=CPU,
        see=lambda environ: (),
        reductions=tuple(name for name in REDUCTIONS if name != "avg"),
        ipc=True,
        resource="CPU",
    )


def device_named(registry: Registry, name: str) -> Device:
    """Return one kind of device.

    Raises:
        BackendNotFound: there is none of that name; tells those there are.
        PluginError: its plugin cannot be used.
    """
    found = registry.build("device", name)
    if not isinstance(found, Device):
        raise BackendBroken(f"device {name!r} is of type {type(found).__name__}", why="the factory returns a Device")
    return found


def accelerators(registry: Registry) -> tuple[Device, ...]:
    """Return every kind of device but the cpu, by name. One whose plugin cannot be used is left out: doctor tells."""
    found = []
    for name in registry.names("device"):
        try:
            found.append(device_named(registry, name))
        except PluginError:
            continue
    return tuple(device for device in found if device.name != CPU)


def count_visible(registry: Registry, environ: Mapping[str, str]) -> dict[str, int]:
    """Return how many devices of each kind this process may use, for the plan."""
    return {device.name: len(device.visible(environ)) for device in accelerators(registry)}


def seen_kinds(registry: Registry) -> frozenset[str]:
    """Return the kinds whose drivers are loaded here, whatever this process may use of them; the cpu always is."""
    return frozenset({CPU, *(device.name for device in accelerators(registry) if device.see(os.environ))})
