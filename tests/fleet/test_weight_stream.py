"""A transport that streams: both ends at once, all or nothing, and nobody waits for the dead beyond the bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.benches.weight_workers import ReceivingWorker, SendingWorker

from areal_core.contract.errors import ArealError, CoverageError, RemoteError, StorageError, WeightSyncError, WorkerDied
from areal_core.fleet.gang import Gang
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.streaming import at_once
from areal_core.fleet.weight_sync import WeightSync
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig

TIMEOUT_S = 8.0
"""How long an end of the transport waits for another."""


class Fleet:
    """A trainer of two ranks and replicas, each with an end of the transport of its own, working in threads."""

    def __init__(self, num_replicas: int, *, staged: bool = True) -> None:
        self.transport = CollectiveTransport(CollectiveConfig(bucket_bytes=1000, timeout_s=TIMEOUT_S))
        self.ends = [CollectiveTransport() for _ in range(num_replicas + 1)]
        tensors = {"embed.weight": torch.zeros(100, 4), "frozen.weight": torch.ones(3)}
        self.trainers = [_threaded(SendingWorker(f"actor/{rank}", self.ends[0], tensors)) for rank in range(2)]
        self.replicas = [
            _threaded(ReceivingWorker(f"rollout/{n}", self.ends[n + 1], list(tensors))) for n in range(num_replicas)
        ]
        self.pool = InferencePool(self.replicas)
        self.sync = WeightSync(
            trainers=self.trainers,
            pool=self.pool,
            transport=self.transport,
            pause=None,
            staged=staged,
            timeout_s=20.0,
        )

    def train(self) -> None:
        self.trainers[0].tensors["embed.weight"] = self.trainers[0].tensors["embed.weight"] + 1

    @property
    def group(self) -> str:
        """Name of the group the trainer keeps."""
        return self.ends[0].cache.held()

    def close(self) -> None:
        for end in (*self.ends, self.transport):
            end.close()


def _threaded(worker: Any) -> Any:
    """Have a worker do its work in a thread, as in a process of its own."""
    for name in ("do_send_weights", "do_receive_weights"):
        if hasattr(worker, name):
            setattr(worker, name, _in_thread(getattr(worker, name)))
    call = worker.call

    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        answer = await call(*args, **kwargs)
        return await answer if asyncio.isfuture(answer) else answer

    worker.call = awaiting
    return worker


def _in_thread(work: Any) -> Any:
    return lambda *args: asyncio.ensure_future(asyncio.to_thread(work, *args))


@pytest.fixture
def fleet() -> Iterator[Any]:
    """Make fleets; every end is closed after the test."""
    made: list[Fleet] = []

    def make(num_replicas: int, **options: Any) -> Fleet:
        made.append(Fleet(num_replicas, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def serve(fleet: Fleet, version: int) -> bool:
    """Return whether every replica in service serves these bytes under this version."""
    workers = [w for w, r in zip(fleet.replicas, fleet.pool.replicas, strict=True) if r.healthy]
    return all(
        worker.version == version and (not version or bool(worker.served["embed.weight"].eq(version).all()))
        for worker in workers
    )


@pytest.mark.parametrize("staged", [True, False])
def test_every_replica_serves_what_was_streamed(fleet: Any, staged: bool) -> None:
    """Three versions arrive everywhere, over one group that is made once."""
    run = fleet(3, staged=staged)
    groups = set()
    for version in (1, 2, 3):
        run.train()
        update = asyncio.run(run.sync.update(version))
        groups.add(run.group)

        assert serve(run, version)
        assert {"stream", "commit"} <= update.phases.keys()
        assert update.excluded == ()
    assert len(groups) == 1, "the group was made anew for the same fleet"
    assert all(worker.paused is False for worker in run.replicas)


def test_every_part_of_a_replica_over_hosts_has_its_end_of_the_stream(fleet: Any) -> None:
    """Three receivers, two of them one replica: each is offered its own, and the replica's loss is that of one part."""
    run = fleet(3)
    run.pool = InferencePool([Gang(run.replicas[:2]), run.replicas[2]])
    run.sync = WeightSync(
        trainers=run.trainers, pool=run.pool, transport=run.transport, pause=None, staged=True, timeout_s=20.0
    )
    run.train()
    whole = asyncio.run(run.sync.update(1))

    assert [worker.version for worker in run.replicas] == [1, 1, 1]
    assert whole.excluded == ()

    run.replicas[1].faults["receive_weights"] = WorkerDied("rollout/1 was killed")
    run.train()
    second = asyncio.run(run.sync.update(2))
    assert second.excluded == ("rollout/0",)
    assert (run.replicas[0].version, run.replicas[2].version) == (1, 2)


@pytest.mark.parametrize("who", ["rollout/1", "actor/0"])
def test_an_error_at_one_end_ends_the_other_and_is_the_one_raised(fleet: Any, who: str) -> None:
    """The update raises what went wrong, naming who; the fleet serves the old version, and the next update works."""
    run = fleet(2)
    run.train()
    asyncio.run(run.sync.update(1))
    run.train()
    if who == "actor/0":
        run.trainers[0].faults["send_weights"] = StorageError("no room for a gather")
    else:
        run.replicas[1]._names = ("embed.weight", "another.weight")

    with pytest.raises(StorageError if who == "actor/0" else CoverageError) as caught:
        asyncio.run(asyncio.wait_for(run.sync.update(2), 15))

    assert who == "actor/0" or who in str(caught.value)
    assert serve(run, 1)
    run.trainers[0].faults.clear()
    run.replicas[1]._names = ("embed.weight", "frozen.weight")
    asyncio.run(run.sync.update(2))
    assert serve(run, 2)


def test_a_receiver_that_dies_is_left_out_and_the_others_get_the_version(fleet: Any) -> None:
    """The stream it broke is made again for those who are left."""
    run = fleet(3)
    run.train()
    run.replicas[1].faults["receive_weights"] = WorkerDied("rollout/1 died")

    update = asyncio.run(asyncio.wait_for(run.sync.update(1), 15))

    assert update.excluded == ("rollout/1",)
    assert serve(run, 1)
    assert run.sync.version == 1


def test_receivers_that_all_die_are_an_error_that_names_one(fleet: Any) -> None:
    """Nobody is left to stream to."""
    run = fleet(2)
    for worker in run.replicas:
        worker.faults["receive_weights"] = WorkerDied("gone")

    with pytest.raises(WeightSyncError, match="rollout/"):
        asyncio.run(asyncio.wait_for(run.sync.update(1), 15))


def test_the_death_of_a_trainer_rank_is_raised_as_itself(fleet: Any) -> None:
    """Nobody waits for the other ranks, which wait for the dead one; the replicas are released."""
    run = fleet(2)
    run.trainers[1].faults["send_weights"] = WorkerDied("actor/1 died")
    run.trainers[0].do_send_weights = lambda *_: asyncio.get_running_loop().create_future()

    with pytest.raises(WorkerDied, match="actor/1"):
        asyncio.run(asyncio.wait_for(run.sync.update(1), 15))

    assert serve(run, 0)


def test_an_update_interrupted_while_a_receiver_is_awaited_ends_before_the_wait_does(fleet: Any) -> None:
    """The sender and the replica that came are woken; the fleet serves the old version, and the next update works."""
    run = fleet(2)
    receive = run.replicas[1].do_receive_weights

    async def interrupted() -> float:
        called = asyncio.Event()

        def hang(*_: object) -> asyncio.Future[None]:
            called.set()
            return asyncio.get_running_loop().create_future()

        run.replicas[1].do_receive_weights = hang
        update = asyncio.ensure_future(run.sync.update(1))
        await called.wait()
        began = time.monotonic()
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        return time.monotonic() - began

    assert asyncio.run(interrupted()) < TIMEOUT_S / 2
    assert serve(run, 0)
    run.replicas[1].do_receive_weights = receive
    run.train()
    asyncio.run(run.sync.update(1))
    assert serve(run, 1)


def test_a_foreign_exception_of_a_receiver_is_told_with_its_name(fleet: Any) -> None:
    """What a replica raised is worth more than the broken stream everybody else saw."""
    run = fleet(2)
    run.replicas[0].faults["receive_weights"] = RemoteError("ValueError: odd", why="trace")

    with pytest.raises(ArealError, match=r"rollout/0.*[\s\S]*odd"):
        asyncio.run(asyncio.wait_for(run.sync.update(1), 15))


def test_what_the_others_say_of_a_failed_stream_is_waited_for() -> None:
    """The first to notice is not always who is to blame; only a lost sender is waited for by nobody."""

    async def test() -> tuple[object, ...]:
        ended = asyncio.Event()

        async def give_up() -> None:
            ended.set()

        async def fails(error: Exception, *, late: bool) -> None:
            if late:
                await ended.wait()
                await asyncio.sleep(0)
            raise error

        first, cause = WeightSyncError("the other end left"), CoverageError("a tensor too many")
        (sent,), (received,) = await at_once([fails(first, late=False)], [fails(cause, late=True)], give_up)
        return sent, received, first, cause

    sent, received, first, cause = asyncio.run(test())
    assert (sent, received) == (first, cause)
