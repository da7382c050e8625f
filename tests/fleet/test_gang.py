"""A replica over two hosts as one worker: who is asked what, in which order, and what the loss of one does to all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from areal_core.contract.errors import (
    FingerprintMismatch,
    GenerationFailed,
    ModelError,
    RemoteError,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from areal_core.contract.inference import EngineStatus, InferenceSpec
from areal_core.contract.weights import Offer, Receipt
from areal_core.fleet.gang import Gang, as_one, parts_of
from areal_core.fleet.pool import InferencePool
from areal_core.testing.clock import StepClock

STATUS = EngineStatus(version=0, num_running=0, num_waiting=0, paused=False, tokens_generated=7)
OFFER = Offer(transport="none", version=3, location={})
SPEC = InferenceSpec(model_path="/m", layout={"t": 2})


class Part:
    """A worker on a host of its own. `script` answers by method: a value, an exception to raise, or a future.

    A list has the answers of one call after another.
    """

    def __init__(self, rank: int, log: list[tuple[str, str]], script: Mapping[str, Any] | None = None) -> None:
        self.id, self.host = f"rollout/{rank}", f"10.0.0.{rank + 1}"
        self.spec: InferenceSpec | None = None
        self.log, self.script = log, dict(script or {})

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer as told. Any: the contract's."""
        self.log.append((self.id, method))
        if method == "start":
            self.spec = args[0]
        answer = self.script.get(method, f"{self.id} {method}")
        if method == "rendezvous":
            answer = f"tcp://{args[0]}:2345"
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, asyncio.Future):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def gang(*scripts: Mapping[str, Any], clock: StepClock | None = None) -> Gang:
    """Return a gang of as many parts; all write to one log, the first part's."""
    log: list[tuple[str, str]] = []
    told = scripts or ({}, {})
    return Gang([Part(rank, log, script) for rank, script in enumerate(told)], clock=clock or StepClock())


def log_of(one: Gang) -> list[tuple[str, str]]:
    """Return who was called for what, in order."""
    found: list[tuple[str, str]] = one.parts[0].log  # type: ignore[attr-defined]
    return found


def receipt(**fingerprints: str) -> Receipt:
    """Return a receipt of version 3."""
    return Receipt(version=3, num_bytes=1, seconds=0.0, fingerprints=fingerprints)


def test_every_part_is_told_its_rank_its_host_and_where_the_leader_is() -> None:
    """The leader's process chose the port; all have one secret, which another start of the same replica would not."""
    keys = set()
    for _ in range(2):
        one = gang()
        asyncio.run(one.call("start", SPEC, timeout_s=9.0))
        parts = [part.spec.part for part in one.parts]  # type: ignore[attr-defined]
        keys.add(tuple(part.key for part in parts))

        assert [(p.rank, p.num_hosts, p.host) for p in parts] == [(0, 2, "10.0.0.1"), (1, 2, "10.0.0.2")]
        assert {part.leader for part in parts} == {"tcp://10.0.0.1:2345"}
        assert log_of(one)[0] == ("rollout/0", "rendezvous")
    assert len(keys) == 2
    assert all(len(key) == 2 and len(set(key)) == 1 and len(key[0]) >= 32 for key in keys)


@pytest.mark.parametrize("method", ["generate", "pause", "resume", "score", "load_adapter", "sleep"])
def test_only_the_leader_takes_requests(method: str) -> None:
    """What is not of every host goes to the leader alone, whose answer is the replica's."""
    one = gang()

    assert asyncio.run(one.call(method, "x", timeout_s=1.0)) == f"rollout/0 {method}"
    assert log_of(one) == [("rollout/0", method)]


@pytest.mark.parametrize("method", ["abort_weights", "close", "status"])
def test_what_concerns_every_host_reaches_every_part(method: str) -> None:
    """Staged weights and processes are on each of them."""
    one = gang()
    asyncio.run(one.call(method, timeout_s=1.0))

    assert sorted(log_of(one)) == [("rollout/0", method), ("rollout/1", method)]


def test_the_others_let_the_old_weights_go_once_the_leader_has_changed() -> None:
    """Until then the leader may compute with them, and they hold a part of them; if it fails nobody is told."""
    one, failing = gang(), gang({"commit_weights": RemoteError("lost")}, {})
    asyncio.run(one.call("commit_weights", 3, timeout_s=1.0))

    assert log_of(one) == [("rollout/0", "commit_weights"), ("rollout/1", "commit_weights")]
    with pytest.raises(RemoteError):
        asyncio.run(failing.call("commit_weights", 3, timeout_s=1.0))
    assert log_of(failing) == [("rollout/0", "commit_weights")]


def test_a_replica_holds_what_all_its_parts_hold() -> None:
    """The leader's receipt is the replica's, unless another part has other bytes: that one is named."""
    same, other = receipt(w="a"), receipt(w="b")
    agreeing = gang({"receive_weights": same}, {"receive_weights": receipt(w="a")})

    assert asyncio.run(agreeing.call("receive_weights", OFFER, 3, timeout_s=1.0)) == same
    with pytest.raises(FingerprintMismatch, match=r"rollout/1 holds other bytes of 'w'"):
        torn = gang({"receive_weights": same}, {"receive_weights": other})
        asyncio.run(torn.call("receive_weights", OFFER, 3, timeout_s=1.0))


def test_a_part_that_cannot_receive_ends_the_wait_of_the_leader() -> None:
    """The leader returns only when all have the version: it is called off, and the other's own error is raised."""

    async def run() -> None:
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        one = gang({"receive_weights": never}, {"receive_weights": WorkerDied("worker rollout/1 was killed")})
        with pytest.raises(WorkerDied, match="rollout/1 was killed"):
            await one.call("receive_weights", OFFER, 3, timeout_s=1.0)
        assert never.cancelled()

    asyncio.run(run())


def test_of_several_failures_the_lost_part_is_the_cause() -> None:
    """The others say that the stream broke off."""
    one, died = gang(), WorkerDied("worker rollout/1 died")

    assert as_one(one.parts, [GenerationFailed("the stream broke"), died]) is died
    assert isinstance(as_one(one.parts, [receipt(w="a"), ModelError("no")]), ModelError)
    assert as_one(one.parts, ["nonsense", receipt(w="a")]) == "nonsense"
    assert [part.id for part in parts_of(one)] == ["rollout/0", "rollout/1"]
    assert parts_of(one.parts[1]) == (one.parts[1],)


def test_a_part_that_fails_while_the_leader_waits_for_it_ends_the_start() -> None:
    """It says so by its status alone: its own start has returned, and the leader's would go on to its deadline."""

    async def run() -> None:
        clock = StepClock()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lost = GenerationFailed("the server ended with code 1", why="no such device")
        one = gang({"start": waiting}, {"status": lost}, clock=clock)
        starting = asyncio.ensure_future(one.call("start", SPEC, timeout_s=600.0))
        for _ in range(4):
            await clock.advance(0.5)

        with pytest.raises(WorkerDied, match="rollout/1 lost its part of replica rollout/0") as caught:
            await starting
        assert "no such device" in str(caught.value)
        assert waiting.cancelled()

    asyncio.run(run())


def test_a_part_that_starts_still_is_not_asked_how_it_is() -> None:
    """It has no engine yet that could tell; the start of all is what is waited for."""

    async def run() -> None:
        clock, loop = StepClock(), asyncio.get_running_loop()
        starts = [loop.create_future(), loop.create_future()]
        one = gang(*({"start": start, "status": GenerationFailed("not started")} for start in starts), clock=clock)
        starting = asyncio.ensure_future(one.call("start", SPEC, timeout_s=600.0))
        for _ in range(8):
            await clock.advance(0.5)
        for rank, start in enumerate(starts):
            start.set_result(f"info {rank}")

        assert await starting == "info 0"

    asyncio.run(run())


@pytest.mark.parametrize(("status", "raised"), [(STATUS, GenerationFailed), (GenerationFailed("gone"), WorkerDied)])
def test_a_request_that_failed_tells_whether_a_part_is_lost(status: Any, raised: type[Exception]) -> None:
    """Then the replica is lost, and the request waits for another instead of failing here again."""
    one = gang({"generate": GenerationFailed("the engine is dead"), "status": STATUS}, {"status": status})

    with pytest.raises(raised):
        asyncio.run(one.call("generate", "x", timeout_s=1.0))


@pytest.mark.parametrize(
    ("leader", "other", "named"),
    [
        (GenerationFailed("part 1 is lost"), WorkerDied("worker rollout/1 was killed"), "worker rollout/1 was killed"),
        (GenerationFailed("part 1 is lost"), GenerationFailed("my server ended"), "rollout/1 lost its part"),
        (GenerationFailed("part 1 is lost"), WorkerTimeout("rollout/1 is silent"), "rollout/0 lost its part"),
        (WorkerTimeout("rollout/0 is slow"), STATUS, "rollout/0 is slow"),
    ],
)
def test_the_error_names_the_part_that_is_lost(leader: Any, other: Any, named: str) -> None:
    """Whoever died, else who says so of itself, else whom the leader misses; one that is merely slow is not lost."""
    one = gang({"status": leader}, {"status": other})

    with pytest.raises(WorkerError, match=named) as caught:
        asyncio.run(one.call("status", timeout_s=1.0))
    assert isinstance(caught.value, WorkerTimeout) is named.endswith("slow")


def test_a_part_that_dies_after_its_answer_is_named_all_the_same() -> None:
    """All are asked at once, and the leader answers last: by then it misses one whose status was good."""
    died = WorkerDied("worker rollout/1 was killed")
    one = gang({"status": GenerationFailed("part 1 is lost")}, {"status": [STATUS, died]})

    with pytest.raises(WorkerDied) as caught:
        asyncio.run(one.call("status", timeout_s=1.0))
    assert caught.value is died


@pytest.mark.parametrize("lost", [0, 1])
def test_a_replica_that_lost_a_part_is_out_of_service(lost: int) -> None:
    """The pool reads the status once a second; nothing of a replica over hosts mends itself, whichever part it is."""
    scripts: list[dict[str, Any]] = [{"status": STATUS}, {"status": STATUS}]
    scripts[lost]["status"] = GenerationFailed("the server ended with code -9")
    pool = InferencePool([gang(*scripts), Part(9, [], {"status": STATUS})])
    asyncio.run(pool.status())
    first, second = pool.replicas

    assert (first.healthy, second.healthy) == (False, True)
    assert f"rollout/{lost} lost its part of replica rollout/0" in first.describe()
