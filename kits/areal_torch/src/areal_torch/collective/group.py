"""A process group beside any other the process may have: made by hand, never the default one, forgotten when dropped.

Knows: torch's process group backends, and the keys under which `init_process_group` and its relatives meet.
Does not know: weights.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from areal_core.contract.device import CPU, Device
from areal_core.contract.errors import WeightSyncError
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
from areal_torch.collective.addresses import local_address
from areal_torch.collective.chain import Chain
from areal_torch.collective.rank_slot import CHAIN, RankSlot
from areal_torch.collective.signed_store import SignedStore
from areal_torch.newcomers import drop_newcomers, left_listening

GLOO, NCCL, HCCL = "gloo", "nccl", "hccl"
_LOOK_S = 0.0005
_WATCHDOGS_PATIENCE = 2
"""A device backend's own watchdog ends the process over a broadcast that is late; `broadcast` has to give up first."""


class BroadcastGroup:
    """One process's rank in a group. Broadcasts come from rank 0, directly or along a chain (`RankSlot.route`).

    Args:
        slot: the group and the rank, its first one.
        store: the one the slot speaks of.
        seats: who sits at each rank, for errors; () for numbers.

    Raises:
        RuntimeError: this process lacks the backend, the others did not come in time, or a broadcast failed; the
            group is of no use afterwards.
    """

    def __init__(self, slot: RankSlot, store: Store, seats: Sequence[str] = ()) -> None:
        self.slot = slot
        self.seats = tuple(seats) or tuple(f"rank {rank}" for rank in range(slot.world_size))
        kind = _torch_type(slot.backend)
        # The keys of `init_custom_process_group`, as engines have it: one prefix from it, two from torch.
        self._store = SignedStore(store, slot.secret) if slot.secret else store
        inner = PrefixStore(slot.group_name, self._store)
        inner = PrefixStore(f"{kind}/", PrefixStore(f"{slot.group_name}/", inner))
        self._group: Any = _make(slot, inner)  # Any: backends have no common typed base
        self.device = torch.device(kind)
        self._options = dist.BroadcastOptions()
        self._options.rootRank = self._options.rootTensor = 0
        self._chain = Chain(self._group, slot.first_rank, self.seats) if slot.route == CHAIN else None

    def stream(self, flats: Sequence[Tensor]) -> None:
        """Send or receive the bytes of several tensors as `broadcast` does, faster than one by one.

        They have arrived on return; they must not change before the next call has returned, or `settle`.
        """
        if self._chain is not None:
            self._chain.pass_on(flats)
            return
        for flat in flats:
            self.broadcast(flat)

    def settle(self) -> None:
        """Wait until what was streamed has left this process, too."""
        if self._chain is not None:
            self._chain.settle()

    def broadcast(self, flat: Tensor) -> None:
        """Send or receive the bytes of one tensor, uint8 [num_bytes], on the group's device. Blocks until done."""
        if self._chain is not None:
            self._chain.pass_on([flat])
            self._chain.settle()
            return
        work = self._group.broadcast([flat], self._options)
        if self.device.type == "cpu":
            work.wait()
            return
        deadline = time.monotonic() + self.slot.timeout_s
        while not work.is_completed():
            # Waiting on a device stream would not end if the other side is gone.
            if time.monotonic() > deadline:
                raise RuntimeError(f"no broadcast within {self.slot.timeout_s:g} s")
            time.sleep(_LOOK_S)
        error = work.exception()  # a broadcast that failed is completed, too
        if error is not None:
            raise RuntimeError(str(error))
        work.wait()

    def close(self) -> None:
        """Leave; whoever is in a broadcast with this rank gets an error. Idempotent."""
        group, self._group = self._group, None
        if group is None:
            return
        chain, self._chain = self._chain, None
        if chain is not None:
            chain.hang_up()
        if self.slot.backend == HCCL:
            # torch_npu's group has torch's own abort, which does nothing; what lies unfinished would end the process.
            group.clear_workmeta_list()
            group.abort_hccl_comm(f"left {self.slot.group_name}")
            group.shutdown()
        else:
            group.abort()


def place() -> str:
    """Return what tells this process's device from others, for example `cuda:GPU-7f3c` or `cpu`."""
    # Kinds that a plugin adds come first: engines put theirs in the place of torch.cuda.
    for device in sorted(_driven(), key=lambda device: not device.torch_plugin):
        module = getattr(torch, device.torch_type, None)
        if module is not None and module.is_available():
            number = int(module.current_device()) if hasattr(module, "current_device") else 0
            own = device.identity and device.identity(module, number)
            return f"{device.name}:{own or local_identity(device, number, os.environ)}"
    return CPU


def local_identity(device: Device, number: int, environ: Mapping[str, str]) -> str:
    """Return this host and what it calls the device that a process calls `number`.

    Each process counts what it sees; the visibility variable tells what the machine calls it.
    """
    named = any(name in environ for name in device.visible_variables)
    ids = device.visible(environ) if named else ()
    return f"{socket.gethostname()}/{ids[number] if number < len(ids) else number}"


def choose(wanted: str, places: Sequence[str]) -> str:
    """Return the backend for participants at these places: the fast one where every one has a device of its own.

    Raises:
        WeightSyncError: the one that is wanted needs such devices, and somebody has none.
    """
    kinds = {where.partition(":")[0] for where in places}
    named = [where for where in places if ":" in where]
    shared = sorted({where for where in named if named.count(where) > 1})
    if wanted == "auto":
        fast = next((device.collective for device in _driven() if kinds == {device.name}), GLOO)
        return GLOO if shared or fast not in (NCCL, HCCL) else fast
    served = [device.name for device in _driven() if device.collective == wanted]
    if wanted != GLOO and (shared or not any(kinds == {name} for name in served)):
        raise WeightSyncError(
            f"weights cannot be streamed over {wanted}",
            why=f"every participant needs a device of its own, {' or '.join(served) or 'one that has it'}; "
            f"they are on {', '.join(places)}",
            fix="leave out weight_sync.options.backend, which takes the fastest that fits",
        )
    return wanted


def _driven() -> list[Device]:
    """Return the kinds of device that torch drives, so not those that the CPU stands in for."""
    return [device for device in accelerators(default_registry()) if device.torch_type != CPU]


def _torch_type(backend: str) -> str:
    """Return the type of the tensors that a backend takes."""
    if backend == GLOO:
        return CPU
    for device in _driven():
        if device.collective == backend:
            return device.torch_type
    raise RuntimeError(f"no device of this process has collectives over {backend}: see areal backends --role device")


def _make(slot: RankSlot, store: Store) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # Any: torch has no stub for its options
    timeout = timedelta(seconds=slot.timeout_s)
    rank, size = slot.first_rank, slot.world_size
    if slot.backend == GLOO:
        options = gloo._Options()
        options._timeout = timeout
        with left_listening() as ports:
            options._devices = [gloo.create_device(hostname=local_address(slot.address, slot.port))]
        group = gloo(store, rank, size, options)
        for port in ports:  # all have met, and gloo would take strangers for ever
            drop_newcomers(port)
        return group
    if slot.backend == NCCL:
        if not dist.is_nccl_available():
            raise RuntimeError("the torch of this process was built without NCCL")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout * _WATCHDOGS_PATIENCE
        return dist.ProcessGroupNCCL(store, rank, size, options)
    if slot.backend != HCCL:
        raise RuntimeError(f"no group is made by hand over {slot.backend}")
    try:
        from torch_npu._C._distributed_c10d import ProcessGroupHCCL
    except ImportError as error:
        raise RuntimeError(f"HCCL comes with torch_npu, which this process cannot import: {error}") from error
    options = ProcessGroupHCCL.Options()
    options._timeout = timeout * _WATCHDOGS_PATIENCE
    options.group_id = slot.group_name
    options.global_ranks_in_group = list(range(size))  # without ranks it would take the default group's place
    return ProcessGroupHCCL(store, rank, size, options)
