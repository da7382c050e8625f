"""Where ranks form their process group: on the address they were given, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist
from tests.benches.strangers import reached

from areal_core.contract.errors import ResourceError
from areal_core.contract.train import RankContext
from areal_core.worker.rendezvous import free_port, init_method
from areal_torch.group import ProcessRanks
from areal_torch.newcomers import no_newcomers
from areal_torch.process_group import join, leave


def listening() -> set[tuple[str, int]]:
    """Return address and port of everything this process listens on."""
    connections = psutil.Process().net_connections(kind="inet")
    return {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}


def context(address: str) -> RankContext:
    return RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=address, timeout_s=20.0)


@pytest.fixture
def group() -> Iterator[ProcessRanks]:
    """One rank that has joined over a loopback address."""
    joined = join(context(init_method("127.0.0.1")), {"d": 1})
    yield joined
    leave(joined)


def test_the_store_listens_on_the_address_given_and_not_on_every_interface(group: ProcessRanks) -> None:
    """Law 11: torch's store takes writes from anybody who reaches it, so nobody outside may reach it."""
    addresses = {address for address, _ in listening()}

    assert addresses and not addresses & {"0.0.0.0", "::"}


def test_gloo_takes_no_connection_once_the_ranks_have_met(group: ProcessRanks) -> None:
    """It never lets go of a stranger's: enough of them would use up the descriptors of the trainer."""
    before = listening()
    with no_newcomers():
        beside = dist.new_group(backend="gloo")
    added = listening() - before
    inherited = [place for place in listening() if place[0] == "127.0.0.1"]

    assert added and reached(sorted(added)) == []
    assert len(reached(inherited)) == 1, "the store, at whose port the ranks of several machines meet"
    dist.barrier(beside)


def test_leaving_closes_the_port() -> None:
    """Law 10: the port can be bound again."""
    port = free_port()
    joined = join(context(f"tcp://127.0.0.1:{port}"), {"d": 1})
    assert ("127.0.0.1", port) in listening()

    leave(joined)
    del joined

    assert ("127.0.0.1", port) not in listening()


def test_ranks_meet_before_they_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo aborts now and then when ranks leave one by one; one that never comes is waited for a while."""
    joined, waits = join(context(init_method("127.0.0.1")), {"d": 1}), list[timedelta]()
    meet = dist.monitored_barrier

    def noted(group: dist.ProcessGroup, timeout: timedelta) -> None:
        assert dist.is_initialized()
        waits.append(timeout)
        meet(group, timeout=timeout)

    monkeypatch.setattr(dist, "monitored_barrier", noted)
    leave(joined)

    assert waits == [timedelta(seconds=10)]
    assert not dist.is_initialized()


def test_a_port_taken_meanwhile_is_an_error_that_names_it(group: ProcessRanks) -> None:
    """A rank that cannot listen says where, and what to do."""
    address, port = next((a, p) for a, p in listening() if a == "127.0.0.1")

    with pytest.raises(ResourceError, match=f"rank 0 of 1 cannot reach the others at tcp://{address}:{port}"):
        join(context(f"tcp://{address}:{port}"), {"d": 1})
