"""A weight update is all or nothing: wherever it breaks, whoever serves, serves one version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.fleets import Inline
from tests.benches.weight_workers import ReceivingWorker, SendingWorker

from areal_core.contract.errors import (
    ArealError,
    CoverageError,
    FingerprintMismatch,
    NoReplica,
    RemoteError,
    StorageError,
    VersionRegressed,
    WeightSyncError,
    WorkerDied,
    WorkerTimeout,
)
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import Generation, GenerationRequest, PauseMode, SamplingParams, VersionSpan
from areal_core.contract.weights import Receipt
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.weight_sync import WeightSync
from areal_core.testing.clock import StepClock
from areal_local.transports.shm import ShmTransport


class Run:
    """A trainer of two ranks, a fleet, and the sync between them."""

    def __init__(
        self,
        num_replicas: int = 2,
        pause: PauseMode | None = None,
        staged: bool = True,
        kind: type[ReceivingWorker] = ReceivingWorker,
    ) -> None:
        self.transport = ShmTransport()
        tensors = {"embed.weight": torch.zeros(10, 4), "frozen.weight": torch.ones(3)}
        self.trainers = [SendingWorker(f"actor/{rank}", self.transport, tensors) for rank in range(2)]
        self.replicas = [kind(f"rollout/{n}", self.transport, list(tensors)) for n in range(num_replicas)]
        self.pool = InferencePool(self.replicas)
        self.sync = WeightSync(
            trainers=self.trainers,
            pool=self.pool,
            transport=self.transport,
            pause=pause,
            staged=staged,
            timeout_s=10.0,
            clock=StepClock(),
        )

    def train(self) -> None:
        self.trainers[0].tensors["embed.weight"] = self.trainers[0].tensors["embed.weight"] + 1

    @property
    def serving(self) -> list[ReceivingWorker]:
        return [worker for worker, replica in zip(self.replicas, self.pool.replicas, strict=True) if replica.healthy]

    def assert_all_serve(self, version: int) -> None:
        for worker in self.serving:
            assert worker.version == version
            assert worker.staged is None
            assert not worker.paused
            if version:
                assert worker.served["embed.weight"].eq(version).all(), "the bytes served are not of that version"
        assert self.sync.version == version


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Collect runs; afterwards every transport is closed and every pool takes requests."""
    made: list[Run] = []
    yield made
    for run in made:
        assert_idle(run)


def assert_idle(run: Run) -> None:
    assert run.pool._open.is_set(), "the pool was left suspended"
    assert not run.transport.segments, "an offer was left open"
    run.transport.close()


@pytest.mark.parametrize("pause", [None, PauseMode.KEEP, PauseMode.ABORT])
@pytest.mark.parametrize("staged", [True, False])
def test_every_replica_serves_what_the_trainer_sent(runs: list[Run], pause: PauseMode | None, staged: bool) -> None:
    """Three updates in a row arrive everywhere; the record counts bytes and what did not change."""
    run = Run(3, pause, staged)
    runs.append(run)
    updates = []

    for version in (1, 2, 3):
        run.train()
        updates.append(asyncio.run(run.sync.update(version)))
        run.assert_all_serve(version)

    assert [update.version for update in updates] == [1, 2, 3]
    assert [update.unchanged for update in updates] == [0, 1, 1]
    assert {(update.num_tensors, update.num_bytes) for update in updates} == {(2, 172)}
    assert {"send", "receive", "commit"} <= updates[0].phases.keys()
    paused = [worker.calls.count("pause") for worker in run.replicas]
    assert paused == [0 if pause is None and staged else 3] * 3


def test_an_update_that_changes_nothing_is_visible(runs: list[Run]) -> None:
    """A trainer that sends the same bytes again gives an update with every tensor unchanged, whenever it begins to."""
    run = Run()
    runs.append(run)
    unchanged = []

    for version, trains in enumerate((False, False, True, False), start=1):
        if trains:
            run.train()
        update = asyncio.run(run.sync.update(version))
        unchanged.append(update.unchanged == update.num_tensors)

    assert unchanged == [False, True, False, True]


def test_a_fleet_that_outlived_a_trainer_is_ahead_and_the_update_is_told_by_the_version_of_the_policy(
    runs: list[Run],
) -> None:
    """Engines count on, the run counts back: what is written of an update is what the run calls it."""
    run = Run()
    runs.append(run)
    run.pool.ahead = 3

    update = asyncio.run(run.sync.update(2))

    assert (update.version, run.sync.version) == (2, 2)
    assert [worker.version for worker in run.serving] == [5, 5]


def test_generation_goes_on_until_the_commit_when_engines_stage(runs: list[Run]) -> None:
    """A staged engine is paused after it received; one that cannot stage is paused before."""
    orders = []
    for staged in (True, False):
        run = Run(1, PauseMode.KEEP, staged)
        runs.append(run)
        asyncio.run(run.sync.update(1))
        orders.append(run.replicas[0].calls)

    assert orders[0] == ["receive_weights", "pause", "commit_weights", "resume"]
    assert orders[1] == ["pause", "receive_weights", "commit_weights", "resume"]


def test_versions_never_go_back(runs: list[Run]) -> None:
    """Offering the version served, or an older one, is refused before anything moves."""
    run = Run()
    runs.append(run)
    asyncio.run(run.sync.update(5))

    for version in (5, 4):
        with pytest.raises(VersionRegressed):
            asyncio.run(run.sync.update(version))
    assert run.trainers[0].calls == ["send_weights"]


def forged(receipt: Receipt, **changes: Any) -> Receipt:
    return attrs.evolve(receipt, **changes)


TAMPERED = {
    "other bytes": (
        lambda r: forged(r, fingerprints={**r.fingerprints, "embed.weight": "0" * 32}),
        FingerprintMismatch,
        "rollout/1.*embed.weight",
    ),
    "a tensor lost": (
        lambda r: forged(r, fingerprints={"embed.weight": r.fingerprints["embed.weight"]}),
        CoverageError,
        "frozen.weight.*rollout/1",
    ),
    "a tensor too many": (
        lambda r: forged(r, fingerprints={**r.fingerprints, "extra": "0"}),
        CoverageError,
        "extra.*rollout/1",
    ),
    "another version": (lambda r: forged(r, version=7), WeightSyncError, "rollout/1.*version 7"),
    "no receipt": (lambda r: None, WeightSyncError, "rollout/1"),
    "an engine's own error": (CoverageError("tensor 'x' is not mine"), CoverageError, "rollout/1.*'x'"),
    "a remote error": (RemoteError("ValueError", why="trace"), WeightSyncError, "rollout/1"),
    "a foreign exception": (ZeroDivisionError(), WeightSyncError, "rollout/1"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_replica_that_does_not_hold_the_bytes_stops_the_update(runs: list[Run], kind: str) -> None:
    """The error names replica and tensor, all replicas go on with the old version, and the next update works."""
    fault, error, match = TAMPERED[kind]
    run = Run(3, PauseMode.KEEP)
    runs.append(run)
    run.train()
    asyncio.run(run.sync.update(1))
    run.train()
    run.replicas[1].faults["receive_weights"] = fault

    with pytest.raises(error, match=match):
        asyncio.run(run.sync.update(2))

    assert len(run.serving) == 3
    run.assert_all_serve(1)
    run.replicas[1].faults.clear()
    asyncio.run(run.sync.update(2))
    run.assert_all_serve(2)


def test_a_sender_without_room_is_told_so(runs: list[Run]) -> None:
    """What the trainer raises arrives as itself, and the fleet goes on with the old version."""
    run = Run()
    runs.append(run)
    run.trainers[0].faults["send_weights"] = StorageError("disk full")

    with pytest.raises(StorageError, match="disk full"):
        asyncio.run(run.sync.update(1))

    run.assert_all_serve(0)


def test_the_death_of_a_trainer_rank_ends_the_wait_for_the_others(runs: list[Run]) -> None:
    """Rank 0 would wait for the dead rank for ever; the update does not wait for rank 0."""
    run = Run()
    runs.append(run)

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    run.trainers[0].call = stuck
    run.trainers[1].faults["send_weights"] = WorkerDied("actor/1 died")

    with pytest.raises(WorkerDied, match="actor/1"):
        asyncio.run(asyncio.wait_for(run.sync.update(1), timeout=30))

    run.assert_all_serve(0)


@pytest.mark.parametrize("method", ["receive_weights", "pause", "commit_weights", "resume"])
@pytest.mark.parametrize("error", [WorkerDied("dead"), WorkerTimeout("silent")])
def test_a_replica_that_dies_is_left_out_and_the_others_go_on(runs: list[Run], method: str, error: ArealError) -> None:
    """The update succeeds without it, names it, and it never serves again."""
    run = Run(3, PauseMode.KEEP)
    runs.append(run)
    run.train()
    run.replicas[0].faults[method] = error

    update = asyncio.run(run.sync.update(1))

    assert update.excluded == ("rollout/0",)
    assert [worker.id for worker in run.serving] == ["rollout/1", "rollout/2"]
    run.assert_all_serve(1)


def test_a_replica_that_was_silent_about_its_bytes_is_not_told_to_serve_them(runs: list[Run]) -> None:
    """It may hold all of them, or half: only a receipt proves it."""

    def too_late(_: Receipt) -> None:
        raise WorkerTimeout("silent")

    run = Run(2)
    runs.append(run)
    run.train()
    run.replicas[0].faults["receive_weights"] = too_late

    update = asyncio.run(run.sync.update(1))

    assert update.excluded == ("rollout/0",)
    assert "commit_weights" not in run.replicas[0].calls
    run.assert_all_serve(1)


def test_a_replica_that_cannot_commit_serves_no_longer(runs: list[Run]) -> None:
    """A commit cannot be taken back elsewhere, so the one that failed goes."""
    run = Run(2)
    runs.append(run)
    run.train()
    run.replicas[1].faults["commit_weights"] = RemoteError("no")

    update = asyncio.run(run.sync.update(1))

    assert update.excluded == ("rollout/1",)
    run.assert_all_serve(1)


def test_a_fleet_that_dies_whole_is_an_error(runs: list[Run]) -> None:
    """Nobody left at commit is NoReplica; nobody left at receive names a replica."""
    for method, error in (("commit_weights", NoReplica), ("receive_weights", WeightSyncError)):
        run = Run(2)
        runs.append(run)
        for worker in run.replicas:
            worker.faults[method] = WorkerDied(f"{worker.id} died")

        with pytest.raises(error):
            asyncio.run(run.sync.update(1))
        assert run.serving == []


FAULTS = st.sampled_from(
    [WorkerDied("dead"), WorkerTimeout("silent"), RemoteError("raised"), CoverageError("lost"), lambda _: None]
)
REPLICA_METHODS = ["receive_weights", "commit_weights", "abort_weights", "pause", "resume"]


@given(
    num_replicas=st.integers(1, 4),
    pause=st.sampled_from([None, *PauseMode]),
    staged=st.booleans(),
    trainer_fault=st.one_of(st.none(), st.tuples(st.integers(0, 1), FAULTS)),
    replica_faults=st.dictionaries(st.tuples(st.integers(0, 3), st.sampled_from(REPLICA_METHODS)), FAULTS, max_size=4),
    cancel_after=st.one_of(st.none(), st.integers(0, 40)),
)
@settings(max_examples=150, deadline=None)
def test_whatever_breaks_nobody_serves_mixed_versions(
    num_replicas: int,
    pause: PauseMode | None,
    staged: bool,
    trainer_fault: tuple[int, Any] | None,
    replica_faults: dict[tuple[int, str], Any],
    cancel_after: int | None,
) -> None:
    """Any faults at any phase, and a cancellation at any moment: all that serve, serve the version that `sync` says."""
    run = Run(num_replicas, pause, staged)
    run.train()
    asyncio.run(run.sync.update(1))
    run.train()
    if trainer_fault is not None:
        run.trainers[trainer_fault[0]].faults["send_weights"] = trainer_fault[1]
    for (number, method), fault in replica_faults.items():
        run.replicas[number % num_replicas].faults[method] = fault

    outcome = asyncio.run(attempt(run, cancel_after))

    assert outcome in ("updated", "refused", "cancelled")
    run.assert_all_serve(run.sync.version)
    assert outcome != "updated" or run.sync.version == 2
    assert outcome != "refused" or run.sync.version == 1
    assert_idle(run)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("pause", [None, *PauseMode])
def test_an_update_cut_short_at_any_turn_is_whole_or_was_not(pause: PauseMode | None, staged: bool) -> None:
    """Replicas that need unlike many turns for each call: those that serve at the end serve what the sync says."""
    ended, turns = "cancelled", 0
    while ended == "cancelled":
        run = Run(3, pause, staged)
        for number, replica in enumerate(run.replicas):
            replica.turns = 1 + 2 * number
        run.train()
        asyncio.run(run.sync.update(1))
        run.train()

        ended = asyncio.run(attempt(run, turns))

        run.assert_all_serve(run.sync.version)
        assert len(run.serving) == 3
        assert_idle(run)
        turns += 1
    assert (ended, run.sync.version) == ("updated", 2)
    assert turns > 20


async def attempt(run: Run, cancel_after: int | None) -> str:
    asyncio.get_running_loop().set_default_executor(Inline())  # else a cancellation mostly comes while a thread works
    task = asyncio.ensure_future(run.sync.update(2))
    for _ in range(cancel_after or 0):
        await asyncio.sleep(0)
    if cancel_after is not None:
        task.cancel()
    try:
        await task
    except ArealError:
        return "refused"
    except asyncio.CancelledError:
        return "cancelled"
    return "updated"


def test_updates_never_overlap(runs: list[Run]) -> None:
    """A second update waits for the first; both versions arrive, in order."""
    run = Run()
    runs.append(run)

    async def both() -> None:
        await asyncio.gather(run.sync.update(1), run.sync.update(2))

    asyncio.run(both())

    assert [call for call in run.replicas[0].calls if call != "pause"] == ["receive_weights", "commit_weights"] * 2


def joining(run: Run, name: str = "rollout.9/0") -> ReceivingWorker:
    """Add a replica to the fleet that holds the starting weights."""
    worker = ReceivingWorker(name, run.transport, list(run.trainers[0].tensors))
    run.pool.add(worker)
    run.replicas.append(worker)
    return worker


def stages(run: Run) -> list[str]:
    return [str(replica.stage) for replica in run.pool.replicas]


def test_a_replica_that_joins_holds_the_bytes_before_it_serves(runs: list[Run]) -> None:
    """It takes part in the next update like the others and serves from its commit on."""
    run = Run(1, PauseMode.KEEP)
    runs.append(run)
    run.train()
    asyncio.run(run.sync.update(1))
    late = joining(run)
    assert stages(run) == ["serving", "joining"]

    run.train()
    asyncio.run(run.sync.update(2))

    run.assert_all_serve(2)
    assert late.calls == ["receive_weights", "pause", "commit_weights", "resume"]
    assert stages(run) == ["serving", "serving"]


@pytest.mark.parametrize("fault", [WorkerDied("gone"), CoverageError("other names"), RemoteError("broken")])
@pytest.mark.parametrize("method", ["receive_weights", "commit_weights"])
def test_what_goes_wrong_with_a_joining_replica_costs_that_replica_only(
    runs: list[Run], method: str, fault: ArealError
) -> None:
    """The others serve the new version, and it never served anything."""
    run = Run(2)
    runs.append(run)
    late = joining(run)
    late.faults[method] = fault

    run.train()
    update = asyncio.run(run.sync.update(1))

    run.assert_all_serve(1)
    assert update.excluded == (late.id,)
    assert stages(run) == ["serving", "serving", "out of service"]


def test_a_version_is_sent_again_to_those_that_join_and_to_nobody_else(runs: list[Run]) -> None:
    """Catching up leaves those in service alone and does not make a version."""
    run = Run(1)
    runs.append(run)
    run.train()
    asyncio.run(run.sync.update(1))
    joining(run)
    before = list(run.replicas[0].calls)

    again = asyncio.run(run.sync.catch_up())

    run.assert_all_serve(1)
    assert again is not None and (again.version, again.unchanged) == (1, again.num_tensors)
    assert run.replicas[0].calls == before
    assert asyncio.run(run.sync.catch_up()) is None


def test_other_weights_under_the_same_version_are_refused(runs: list[Run]) -> None:
    """A trainer that moved on cannot give a replacement weights that nobody else serves as that version."""
    run = Run(1)
    runs.append(run)
    run.train()
    asyncio.run(run.sync.update(1))
    late = joining(run)
    run.train()

    with pytest.raises(WeightSyncError, match="sent other weights as version 1 than before"):
        asyncio.run(run.sync.catch_up())

    assert (late.version, stages(run)) == (0, ["serving", "joining"])


def test_catching_up_waits_for_a_step_to_end(runs: list[Run]) -> None:
    """While a step is under way the trainer's weights are of no version; its update brings the replica in."""

    async def test(run: Run) -> tuple[bool, object]:
        async with run.sync.stepping():
            run.train()
            catching = asyncio.create_task(run.sync.catch_up())
            await run.sync.update(2)
            waited = not catching.done()
        return waited, await catching

    run = Run(1)
    runs.append(run)
    run.train()
    asyncio.run(run.sync.update(1))
    joining(run)

    assert asyncio.run(test(run)) == (True, None)
    run.assert_all_serve(2)
    assert run.trainers[0].calls == ["send_weights"] * 2


class _Asked(ReceivingWorker):
    """A replica that is asked for tokens while it commits; `order` has what every replica did."""

    order: list[str]
    pool: InferencePool
    asked: list[asyncio.Task[Generation]]

    def do_commit_weights(self, version: int) -> None:
        """Commit; somebody asks the pool meanwhile."""
        super().do_commit_weights(version)
        self.order.append("commit")
        self.asked.append(asyncio.ensure_future(self.pool.generate(_REQUEST)))

    def do_resume(self) -> None:
        """Note it."""
        super().do_resume()
        self.order.append("resume")

    def do_generate(self, _request: GenerationRequest) -> Generation:
        """Give a token of the version that serves."""
        self.order.append("generate")
        span = VersionSpan(start=0, stop=1, version=self.version)
        return Generation(output_ids=[7], logprobs=[-1.0], version_spans=[span], stop_reason="length")


_REQUEST = GenerationRequest(request_id=RequestId("r"), input_ids=(5,), sampling=SamplingParams(max_new_tokens=1))


@pytest.mark.parametrize("pause", [None, PauseMode.KEEP, PauseMode.ABORT])
@pytest.mark.parametrize("staged", [True, False])
def test_no_request_begins_while_replicas_flip(runs: list[Run], pause: PauseMode | None, staged: bool) -> None:
    """Whoever asks during the commit is served when all replicas have committed, and go on."""

    async def scene() -> tuple[list[str], set[int]]:
        run = Run(3, pause, staged, _Asked)
        runs.append(run)
        order, asked = list[str](), list[asyncio.Task[Generation]]()
        for replica in run.replicas:
            vars(replica).update(order=order, pool=run.pool, asked=asked)
        run.train()
        await run.sync.update(1)
        made = await asyncio.gather(*asked)
        return order, {one.version_spans[0].version for one in made}

    order, versions = asyncio.run(scene())

    began = order.index("generate")
    assert "commit" not in order[began:]
    assert "resume" not in order[began:]
    assert (order.count("generate"), versions) == (3, {1})
