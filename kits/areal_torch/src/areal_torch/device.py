"""A rank's device: chosen, synchronised, seeded, by way of the torch module that its kind names.

Knows: what torch's modules of devices have in common.
Does not know: any kind of device, which the role `device` tells; models, or how many ranks there are.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils import deterministic

from areal_core.contract.device import CPU, Device
from areal_core.contract.errors import CapabilityError, ResourceError
from areal_core.plugins.describe import resolve
from areal_core.plugins.devices import device_named
from areal_core.plugins.registry import default_registry
from areal_torch import attention

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def collective_backend(kind: str) -> str:
    """Return what `init_process_group` takes for ranks on a kind of device.

    Raises:
        BackendNotFound: there is no such kind; tells those there are.
    """
    return device_named(default_registry(), kind).collective


def torch_type(kind: str) -> str:
    """Return the type of `torch.device` for a kind of device: its own name, except where something stands in for it."""
    return device_named(default_registry(), kind).torch_type


def open_device(kind: str, local_rank: int) -> torch.device:
    """Return the device of that kind for this rank and make it the current one.

    Raises:
        BackendNotFound: there is no such kind; tells those there are.
        ResourceError: torch does not drive it, or sees fewer devices than local ranks.
    """
    if "AREAL_DETERMINISTIC" in os.environ:
        use_deterministic_kernels()
    # Products in float32 are ones on GPUs; of convolutions, as image towers have, torch would keep eleven bits.
    torch.backends.cudnn.allow_tf32 = False
    device = device_named(default_registry(), kind)
    if device.attention:
        attention.use_kernel(device.torch_type, _kernel(device))
    if device.torch_type == CPU:
        return torch.device(CPU)
    module = torch_module(device)
    count = int(module.device_count()) if module is not None and module.is_available() else 0
    if local_rank >= count:
        raise ResourceError(
            f"no {kind} device for local rank {local_rank}",
            why=f"torch sees {count} {kind} devices",
            fix=f"ask for fewer ranks on this machine, or {device.torch_fix}; see `areal doctor`",
        )
    if not hasattr(module, "set_device"):  # there is one device of the kind, always the current one
        return torch.device(device.torch_type)
    module.set_device(local_rank)
    return torch.device(device.torch_type, local_rank)


def use_deterministic_kernels() -> None:
    """Have torch compute the same bits for the same input, or refuse an operation that has no such kernel.

    Call it before a device is used: its libraries read the variable when they are loaded.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # it would write all memory twice


def torch_module(device: Device) -> Any:
    """Return the module of torch that drives a kind of device, None on the CPU and where torch has none.

    Any: torch_npu adds one that torch does not declare.

    Raises:
        ResourceError: the module that adds it to torch is not installed, or cannot be loaded.
    """
    if device.torch_plugin:
        _import_plugin(device)
    return _module(device.torch_type)


def compute_dtype(name: str) -> torch.dtype:
    """Return the dtype matrix products run in; master weights are float32 whatever it is.

    Raises:
        CapabilityError: float16, which needs loss scaling.
    """
    if name not in _DTYPES:
        raise CapabilityError(
            f"training in {name!r} is not supported",
            why=f"float16 needs loss scaling, which these engines do not have; they compute in {', '.join(_DTYPES)}",
            fix="set dtype to bfloat16",
        )
    return _DTYPES[name]


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on the device is done."""
    module = _module(device.type)
    if module is not None:
        if hasattr(module, "set_device"):
            module.synchronize(device)
        else:
            module.synchronize()


def seed_everything(device: torch.device, seed: int) -> None:
    """Seed torch's generators of the CPU and of the device."""
    torch.manual_seed(seed)
    module = _module(device.type)
    if module is not None:
        module.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's generators, uint8 tensors by generator name."""
    states = {"cpu": torch.get_rng_state()}
    module = _module(device.type)
    if module is not None:
        states[device.type] = module.get_rng_state(device)
    return states


def restore_random_state(device: torch.device, states: dict[str, Tensor]) -> None:
    """Put back what `random_state` returned; generators it does not name are left alone."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    module = _module(device.type)
    if module is not None and device.type in states:
        module.set_rng_state(states[device.type], device)


def release_cache(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device, for other processes."""
    module = _module(device.type)
    if module is not None:
        module.empty_cache()
    elif (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # of glibc; others keep little
        trim(0)


def _module(torch_type: str) -> Any:
    """Return torch.cuda and the like; None on the CPU. Any: see `torch_module`."""
    return None if torch_type == CPU else getattr(torch, torch_type, None)


def _kernel(device: Device) -> attention.Kernel:
    try:
        kernel: Any = resolve(device.attention)  # Any: what the name stands for; it is called as a Kernel
    except (ImportError, AttributeError) as error:
        raise ResourceError(
            f"no attention on {device.name}", why=f"{device.attention} cannot be loaded: {error}", fix=device.torch_fix
        ) from error
    found: attention.Kernel = kernel
    return found


def _import_plugin(device: Device) -> None:
    try:
        import_module(device.torch_plugin)
    except ModuleNotFoundError as error:
        raise ResourceError(
            f"no {device.name} device", why=f"{error.name} is not installed", fix=device.torch_fix
        ) from error
    except ImportError as error:
        raise ResourceError(
            f"no {device.name} device",
            why=f"{device.torch_plugin} cannot be loaded: {str(error).splitlines()[0]}",
            fix=device.torch_fix,
        ) from error
