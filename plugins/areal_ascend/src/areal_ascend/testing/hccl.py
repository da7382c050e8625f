"""HCCL over gloo: the process group that torch_npu makes, with aliases on the host sent by gloo.

Knows: which collectives a group has, and that each is done when it returns.
Does not know: HCCL's own algorithms, streams or time-outs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.utils._pytree import tree_map

from areal_ascend.testing.kernels import alias, is_npu

_COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "broadcast", "reduce"),
    *("gather", "scatter", "alltoall", "alltoall_base", "send", "recv", "barrier"),
    *("all_gather_single", "reduce_scatter_single", "all_to_all_single"),
)


def install() -> None:
    """Let torch_npu make groups of this kind in this process; its own code decides when and with which options."""
    from torch_npu._C import _distributed_c10d

    real = _distributed_c10d.ProcessGroupHCCL
    if not issubclass(real, dist.ProcessGroup):
        HostHCCL.Real, HostHCCL.Options = real, real.Options
        _distributed_c10d.ProcessGroupHCCL = HostHCCL


class HostHCCL(dist.ProcessGroup):
    """Made with what ProcessGroupHCCL takes. Any: torch has no types for options."""

    Real: Any = None
    """The class of torch_npu in whose place this one is."""
    Options: Any = None

    def __init__(self, store: Store, rank: int, size: int, options: Any) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # without a store it is for subclasses in Python
        timeout: timedelta = options._timeout
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._group: Any = dist.ProcessGroup(store, rank, size)
        self._group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)

    def getBackendName(self) -> str:
        """Return what torch calls the real one."""
        return "hccl"

    @property
    def group_name(self) -> Any:
        """Return the name torch knows the group by."""
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def pg_name(self) -> str:
        """As `group_name`."""
        return str(self.group_name)

    @property
    def group_desc(self) -> str:
        """Return what it is."""
        return "HCCL over gloo"

    def abort(self) -> None:
        """Do nothing: torch_npu's own has another signature than torch's, so that torch's is what is called."""

    def abort_hccl_comm(self, reason: str | None) -> None:
        """End it; those who wait get an error. gloo's connections close when nobody has them any more."""
        self._gloo = self._group = None

    def clear_workmeta_list(self) -> None:
        """Forget what lies unfinished: nothing does, each collective is done when it returns."""

    def shutdown(self) -> None:
        """End it."""
        self._gloo = self._group = None


def _collective(name: str) -> Callable[..., Any]:
    def run(self: HostHCCL, *args: Any, **options: Any) -> Any:
        lowered = tree_map(lambda value: alias(value) if is_npu(value) else value, args)
        work = getattr(self._group, name)(*lowered, **options)
        work.wait()
        return work

    return run


for _name in _COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(HostHCCL, _name, _collective(_name))
