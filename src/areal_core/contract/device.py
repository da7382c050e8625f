"""A kind of device: how it is seen and given out without torch, and what engines are told about it.

A plugin of the role `device` is a function without arguments that returns a `Device`. Building it, `see`, `visible`
and `confine` run in the controller, the scheduler and the command line: they import no torch.

Example:
    Device(name="cuda", vendor="NVIDIA", torch_type="cuda", see=see_nvidia,
           visible_variables=("CUDA_VISIBLE_DEVICES",), collective="nccl", reductions=("sum", "avg"), resource="GPU")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

CPU = "cpu"
"""The device that is always there, is never counted, and that no worker owns."""

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""What a collective library may combine values with, in torch's words."""


@frozen(kw_only=True)
class SeenDevice:
    """One device of this machine. `id` is what the visibility variable calls it, for example `0` or `GPU-7f3c`."""

    id: str
    name: str


@frozen(kw_only=True)
class DeviceMemory:
    """Bytes of one device: free now, and in all."""

    free: int
    total: int


@frozen(kw_only=True)
class Device:
    """One kind of device, by the name that `device:` of a run and the manifests of backends call it."""

    name: str
    vendor: str
    torch_type: str
    """The type of `torch.device`; `torch.<torch_type>` is the module that drives it."""
    torch_plugin: str = ""
    """The module to import before torch knows the type, for example `torch_npu`; empty where torch itself has it."""
    torch_fix: str = "install the torch build for this device"
    """What to do where torch does not drive it."""
    see: Callable[[Mapping[str, str]], Sequence[SeenDevice]]
    """Return the devices whose drivers are loaded, given the environment; the visibility variables do not count."""
    visible_variables: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Variables that confine a process to some devices: the first one set is read, all are given to a worker."""
    hidden: Mapping[str, str] | None = None
    """The environment that hides every device of the kind; None sets the visibility variables to nothing."""
    collective: str = "gloo"
    """What `init_process_group` takes for ranks on this device."""
    reductions: tuple[str, ...] = field(default=("sum",), converter=tuple[str, ...])
    """Which of `REDUCTIONS` that library has."""
    memory: Callable[[Any, int], DeviceMemory] | None = None
    """Given torch's module and the number it knows a device by, return its memory. Any: torch is not imported here."""
    identity: Callable[[Any, int], str] | None = None
    """Given the same, return what no other device in the world is called; None where only the host and the id tell."""
    ipc: bool = False
    """Whether one process can open the device memory of another of the same host."""
    resource: str = ""
    """What schedulers of clusters count it as: `GPU`, `NPU`."""
    attention: str = ""
    """`module:function` of a kernel for packed sequences (`areal_torch.attention.Kernel`); empty takes torch's."""
    stand_in: str = ""
    """What answers in its place and what that leaves open, told in every report; empty for the real device."""

    def visible(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the ids this process may use: those its environment names, else all that are seen.

        As drivers do, an id of -1, or an empty one, ends the list.
        """
        named = next((environ[name] for name in self.visible_variables if name in environ), None)
        if named is None:
            return tuple(device.id for device in self.see(environ))
        ids = [part.strip() for part in named.split(",")]
        end = next((number for number, part in enumerate(ids) if part in ("", "-1")), len(ids))
        return tuple(ids[:end])

    def confine(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the environment in which a process sees these devices of the kind and no others."""
        if not ids and self.hidden is not None:
            return dict(self.hidden)
        return dict.fromkeys(self.visible_variables, ",".join(ids))
