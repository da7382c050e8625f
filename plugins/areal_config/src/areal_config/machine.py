"""A machine to plan for: how many devices, how much memory. This one, or one that is described: `cuda:8x80GB`.

Knows: descriptions of machines, what a plan is known to need at least, and whether its folder can be written here.
Does not know: activations and caches, which come on top and depend on a run's batches.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

import psutil
from attrs import Factory, frozen

from areal_config.turns import memory_of_turns
from areal_core.config.plan import Plan
from areal_core.config.role_plan import RolePlan
from areal_core.config.schema import SHARED
from areal_core.config.shared import takes_turns
from areal_core.contract.device import CPU
from areal_core.contract.errors import ConfigError, ResourceError, StorageError
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.devices import count_visible, device_named
from areal_core.plugins.registry import Registry

_SHAPE = re.compile(r"(?P<kind>[a-z]+):((?P<count>[1-9]\d*)x)?(?P<size>\d+(\.\d+)?)(?P<unit>GB|GiB)")
_UNITS = {"GB": 10**9, "GiB": 2**30}


@frozen(kw_only=True)
class Machine:
    """What a run may use. `memory` is of one device of a kind in bytes; the cpu's is the whole machine's.

    Example: Machine(devices={"cuda": 8}, memory={"cuda": 80_000_000_000})
    """

    devices: Mapping[str, int]
    memory: Mapping[str, int] = Factory(lambda: {CPU: int(psutil.virtual_memory().total)})
    """By default this machine's; that of its accelerators is not asked for: drivers tell it to whoever opens them."""

    def misfits(self, plan: Plan) -> list[str]:
        """Return, as warnings, what is known not to fit: weights and optimizer states alone need more than there is.

        Raises:
            ResourceError: trainers and fleet take turns, and one of the turns does not fit.
        """
        needs: Counter[str] = Counter()
        device, roles = plan.roles[0].device, plan.roles
        have = self.memory.get(device)
        if plan.config.placement == SHARED and plan.transports:
            if have is not None:
                _check_turns(plan, device, have)
            roles = tuple(role for role in roles if not _in_turns(role))
        if device == CPU:
            needs["all roles together"] = sum(role.num_workers * role.memory_per_worker for role in roles)
        else:
            for role in roles:
                needs[_owner(role)] += role.memory_per_worker // role.devices_per_worker
        if have is None:
            return []
        return [
            f"{who}: weights and optimizer states need {_gigabytes(need)} "
            f"{'' if device == CPU else 'on each device '}and there are {_gigabytes(have)}; activations and "
            "caches come on top: take more ranks (d, t, p), a smaller dtype, or an adapter"
            for who, need in needs.items()
            if need > have
        ]


def devices_and_misfits(text: str, registry: Registry) -> tuple[Mapping[str, int], Callable[[Plan], Sequence[str]]]:
    """Return what a plan asks of a machine that may be described: the extension `machine`.

    Raises as `described`; of this machine the second raises a StorageError if the run's folder cannot be written.
    """
    if text:
        there = described(text, registry)
        return there.devices, there.misfits
    here = Machine(devices=count_visible(registry, os.environ))

    def misfits(plan: Plan) -> list[str]:
        _check_writable(RunFolder.of(plan.config).root)
        return here.misfits(plan)

    return here.devices, misfits


def _check_writable(folder: Path) -> None:
    """Refuse a run folder that cannot be written, or made; nothing is left there."""
    try:
        nearest = next(each for each in (folder, *folder.parents) if each.exists())
        with TemporaryFile(dir=nearest):  # permissions alone do not tell: the disk may be read-only
            return
    except OSError as error:
        raise StorageError(
            f"run folder {folder} cannot be written", why=str(error), fix="choose another folder with out=DIR"
        ) from None


def described(text: str, registry: Registry) -> Machine:
    """Return the machine that is described as `cuda:8x80GB`, or `cpu:64GB`.

    Raises:
        ConfigError: it is no such description.
        BackendNotFound: there is no such kind of device.
    """
    found = _SHAPE.fullmatch(text)
    if found is None or (found["kind"] == CPU and found["count"]):
        raise ConfigError(
            f"{text!r} describes no machine",
            why="it is a kind of device, how many of them, and the memory of one",
            fix="for example cuda:8x80GB, npu:16x64GB, or cpu:64GB",
        )
    kind, size = found["kind"], round(float(found["size"]) * _UNITS[found["unit"]])
    device_named(registry, kind)
    return Machine(devices={} if kind == CPU else {kind: int(found["count"] or 1)}, memory={kind: size})


def _check_turns(plan: Plan, device: str, have: int) -> None:
    where = "in all" if device == CPU else "on each device"
    advice = ("take more ranks (actor.backend), or an adapter (actor.lora)", "take a smaller rollout.dtype, or more t")
    for turn, need, fix in zip(("training", "generation"), memory_of_turns(plan.roles), advice, strict=True):
        if need > have:
            raise ResourceError(
                f"the turn of {turn} needs {_gigabytes(need)} {where} and there are {_gigabytes(have)}",
                why="weights and optimizer states alone, while the other side sleeps; activations or cache come on top",
                fix=fix,
            )


def _in_turns(role: RolePlan) -> bool:
    return role.engine_role == "infer" or takes_turns(role.role, role.placement.owner, role.device)


def _owner(role: RolePlan) -> str:
    """Return who has the devices that a role is on."""
    return role.placement.owner or role.role


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
