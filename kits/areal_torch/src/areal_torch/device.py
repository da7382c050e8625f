"""The one place that knows which accelerator this is: cpu, cuda or npu.

Knows: how a device is chosen, synchronised and seeded, and which collective library serves it.
Does not know: models, or how many ranks there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_core.contract.errors import CapabilityError, ResourceError
from areal_core.plugins.install import pip_install

DISTRIBUTED_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""What `init_process_group` takes, by device type."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def open_device(kind: str, local_rank: int) -> torch.device:
    """Return the device of that type for this rank and make it the current one.

    Raises:
        ResourceError: an unknown type, or fewer devices than local ranks.
    """
    if kind not in DISTRIBUTED_BACKENDS:
        raise ResourceError(f"unknown device type {kind!r}", why=f"types are {', '.join(DISTRIBUTED_BACKENDS)}")
    if kind == "cpu":
        return torch.device("cpu")
    module = _module(kind)
    count = int(module.device_count()) if module is not None and module.is_available() else 0
    if local_rank >= count:
        raise ResourceError(
            f"no {kind} device for local rank {local_rank}",
            why=f"torch sees {count} {kind} devices",
            fix="ask for fewer ranks on this machine, or install the torch build for this device; see `areal doctor`",
        )
    module.set_device(local_rank)
    return torch.device(kind, local_rank)


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
        module.synchronize(device)


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


def _module(kind: str) -> Any:
    """Return torch.cuda, torch.npu or None. Any: torch.npu exists only where torch_npu is installed."""
    if kind == "npu":
        _import_npu()
    return None if kind == "cpu" else getattr(torch, kind, None)


def _import_npu() -> None:
    try:
        import torch_npu  # noqa: F401  adds torch.npu
    except ModuleNotFoundError as error:
        raise ResourceError(
            "no npu device", why=f"{error.name} is not installed", fix=pip_install("areal-ascend[engine]")
        ) from error
    except ImportError as error:
        raise ResourceError(
            "no npu device",
            why=f"torch_npu cannot be loaded: {str(error).splitlines()[0]}",
            fix="source set_env.sh of the CANN toolkit, as in `source /usr/local/Ascend/ascend-toolkit/set_env.sh`; "
            "see `areal doctor`",
        ) from error
