"""How the ranks of one role form a process group, and how they leave it.

Knows: rendezvous addresses, the collective library of each device.
Does not know: what the ranks do together.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

import torch.distributed as dist

from areal_core.contract.errors import ResourceError
from areal_core.contract.train import RankContext
from areal_torch.device import collective_backend
from areal_torch.group import ProcessRanks
from areal_torch.layout import data_ranks
from areal_torch.newcomers import no_newcomers

_CLOSE_TIMEOUT_S = 10.0


def join(rank: RankContext, layout: Mapping[str, int]) -> ProcessRanks:
    """Form a process group with the other ranks of the role, at the address given and nowhere else. Collective.

    The address is a file, which the ranks of one machine share, or a port. No port that gloo opens takes connections
    afterwards.

    Raises:
        ResourceError: they cannot be reached.
    """
    timeout = timedelta(seconds=rank.timeout_s)
    try:
        meeting = _init_method(rank, timeout)
        with no_newcomers():
            dist.init_process_group(
                collective_backend(rank.device),
                **meeting,
                rank=rank.rank,
                world_size=rank.world_size,
                timeout=timeout,
            )
    except (dist.DistError, OSError) as error:
        raise ResourceError(
            f"rank {rank.rank} of {rank.world_size} cannot reach the others at {rank.init_method}",
            why=str(error).splitlines()[0],
            fix="if another program took the port, start the run again: it chooses a new one; or check: ss -ltn",
        ) from error
    with no_newcomers():
        control = dist.new_group(backend="gloo", timeout=timeout)
    return ProcessRanks(
        rank=rank.rank, size=rank.world_size, control=control, data_ranks=data_ranks(layout, rank.world_size)
    )


def _init_method(rank: RankContext, timeout: timedelta) -> dict[str, Any]:  # Any: keywords of init_process_group
    """Return how the ranks find each other. Torch's own `tcp://` store would listen on every interface."""
    address = urlparse(rank.init_method)
    if address.scheme != "tcp" or address.hostname is None or address.port is None:
        return {"init_method": rank.init_method}
    listener = None
    if rank.rank == 0:
        family = socket.AF_INET6 if ":" in address.hostname else socket.AF_INET
        listener = socket.create_server((address.hostname, address.port), family=family, backlog=rank.world_size)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not in torch's __all__
        address.hostname,
        address.port,
        rank.world_size,
        is_master=listener is not None,
        timeout=timeout,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    return {"store": store}


def leave(group: ProcessRanks) -> None:
    """Destroy the process group. gloo may abort when ranks leave one by one, so they wait for each other first."""
    try:
        dist.monitored_barrier(group.control, timeout=timedelta(seconds=_CLOSE_TIMEOUT_S))
    except RuntimeError:
        pass  # a rank is dead or stuck in a collective, which the supervisor reports; leave alone
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Drop what torch worked out for the meshes of this group: a mesh of the next one looks equal, and is not."""
    from torch.distributed.tensor import _collective_utils, _redistribute, debug

    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()
    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
