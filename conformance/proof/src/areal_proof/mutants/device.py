"""Kinds of device that are not what they say, with one defect each."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from areal_conformance.target import Target, locate
from areal_core.contract.device import Device, SeenDevice
from areal_core.plugins.devices import device_named
from areal_core.plugins.registry import Registry
from areal_proof.mutants import mutant

_FILE = """
import torch

from areal_core.contract.device import Device, SeenDevice
from areal_core.plugins.marks import device

@device("asks_torch")
def asks_torch():
    return Device(name="asks_torch", vendor="nobody", torch_type="cpu", see=lambda environ: [])
"""


def _other(whole: Target, kind: type[Device] = Device, **fields: Any) -> Target:
    """Return the target with a device that differs, or of another class. Any: fields of a Device."""
    assert whole.manifest is not None
    device = device_named(whole.registry, whole.name)
    broken = kind(**{**{one.name: getattr(device, one.name) for one in attrs.fields(Device)}, **fields})
    registry = Registry(entries={(whole.role, whole.name): (whole.manifest, lambda: broken)})
    return attrs.evolve(whole, registry=registry)


@mutant("device/cuda", killers=("device.names.itself",))
def AnotherName(whole: Target) -> Target:
    """Calls itself otherwise than its manifest does: manifests of backends name one, runs the other."""
    return _other(whole, name="gpu")


@mutant("device/cuda", killers=("device.counts.without_torch",))
def AsksTorch(whole: Target) -> Target:
    """Imports torch to be counted, so that no scheduler can place a job without an engine."""
    path = Path(tempfile.mkdtemp(prefix="areal-mutant-")) / "asks_torch.py"
    path.write_text(_FILE)
    return locate(attrs.evolve(whole.locator, name="asks_torch", imports=(str(path),)))


@mutant("device/cuda", killers=("device.ids.distinct",))
def OneIdTwice(whole: Target) -> Target:
    """Gives two devices one id: two workers would own it."""
    return _other(whole, see=lambda environ: [SeenDevice(id="0", name="a"), SeenDevice(id="0", name="b")])


@mutant("device/cuda", killers=("device.visible.confines",))
def HidesAllButOne(whole: Target) -> Target:
    """Leaves device 0 to workers that own none."""
    return _other(whole, hidden={"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"})


@mutant("device/cuda", killers=("device.visible.confines",))
def CannotBeConfined(whole: Target) -> Target:
    """Has two devices and no variable: every worker would take the first."""
    seen = [SeenDevice(id=number, name="a") for number in "01"]
    return _other(whole, visible_variables=(), see=lambda environ: seen)


class _FirstOnly(Device):
    def confine(self, ids: Sequence[str]) -> dict[str, str]:
        return dict(list(super().confine(ids).items())[:1])


class _NothingIsAll(Device):
    def visible(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        return super().visible({name: value for name, value in environ.items() if value})


class _ReadsOn(Device):
    def visible(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        listed = {name: [part for part in value.split(",") if part != "-1"] for name, value in environ.items()}
        return super().visible({name: ",".join(parts) for name, parts in listed.items()})


@mutant("device/cuda", killers=("device.visible.confines",))
def KeepsTheShells(whole: Target) -> Target:
    """Confines a process by its first variable alone; a second one keeps what the shell said."""
    return _other(whole, _FirstOnly)


@mutant("device/cuda", killers=("device.visible.read",))
def NothingIsAll(whole: Target) -> Target:
    """Takes a variable that hides every device for one that is not set."""
    return _other(whole, _NothingIsAll)


@mutant("device/cuda", killers=("device.visible.read",))
def ReadsOn(whole: Target) -> Target:
    """Gives out what stands behind an id that ends the list."""
    return _other(whole, _ReadsOn)


@mutant("device/cuda", killers=("device.reductions.known",))
def UnheardReduction(whole: Target) -> Target:
    """Claims to reduce with a word that no engine asks for."""
    return _other(whole, reductions=("sum", "mean"))
