"""Kinds of device that are not what they say, with one defect each."""

from __future__ import annotations

import tempfile
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


def _other(whole: Target, **fields: Any) -> Target:
    """Return the target with a device that differs. Any: fields of a Device."""
    assert whole.manifest is not None
    broken: Device = attrs.evolve(device_named(whole.registry, whole.name), **fields)
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


@mutant("device/cuda", killers=("device.reductions.known",))
def UnheardReduction(whole: Target) -> Target:
    """Claims to reduce with a word that no engine asks for."""
    return _other(whole, reductions=("sum", "mean"))
