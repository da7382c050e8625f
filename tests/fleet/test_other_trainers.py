"""A fleet whose trainers are lost goes on with others, at an older version: engines see versions that only grow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.fleets import EndableWorker
from tests.benches.weight_workers import ReceivingWorker, SendingWorker

from areal_core.contract.errors import VersionRegressed, WeightSyncError, WorkerDied
from areal_core.contract.inference import GenerationRequest, PauseMode, SamplingParams
from areal_core.contract.weights import Offer, Receipt
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.weight_sync import WeightSync
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import ScriptedEngine
from areal_local.transports.shm import ShmTransport

DIED = WorkerDied("actor/0 was killed")


class Engine(ReceivingWorker):
    """A replica that takes no weights but newer ones than it serves; `offered` is the newest it ever saw."""

    offered = 0

    def do_receive_weights(self, offer: Offer, version: int) -> Receipt:
        """Refuse what is not newer."""
        if version <= self.version:
            raise VersionRegressed(f"{version} was offered to who serves {self.version}")
        self.offered = max(version, self.offered)
        return super().do_receive_weights(offer, version)


class Run:
    """A fleet that outlives its trainer; the weights of version v are v everywhere, plus what tells trainers apart."""

    def __init__(self, num_replicas: int = 2) -> None:
        self.transport = ShmTransport()
        self.replicas = [Engine(f"rollout/{number}", self.transport, ["w"]) for number in range(num_replicas)]
        self.pool = InferencePool(self.replicas)
        self.trainer = SendingWorker("actor/0", self.transport, {"w": torch.zeros(4)})
        self.sync = self._sync()
        self.version, self.value, self.generation = 0, 0.0, 0

    def _sync(self) -> WeightSync:
        ends: dict[str, Any] = {"pool": self.pool, "transport": self.transport, "clock": StepClock()}
        return WeightSync(trainers=[self.trainer], pause=None, timeout_s=10.0, **ends)

    def step(self, fault: Exception | None = None, where: str = "trainer") -> None:
        """Make the next version and send it; with a fault, whoever is named fails."""
        self.trainer.tensors = {"w": torch.full((4,), self.version + 1 + self.generation / 100)}
        if fault is None:
            asyncio.run(self.sync.update(self.version + 1))
            self.version, self.value = self.version + 1, self.version + 1 + self.generation / 100
            return
        at = self.trainer if where == "trainer" else self.replicas[0]
        at.faults["send_weights" if where == "trainer" else "receive_weights"] = fault
        with pytest.raises(WeightSyncError if where == "replica" else WorkerDied):
            asyncio.run(self.sync.update(self.version + 1))
        at.faults.clear()

    def lose_trainer(self, version: int) -> None:
        """Go on with another trainer from a version."""
        seen = max(replica.offered for replica in self.replicas)
        self.sync.disconnect()
        self.generation += 1
        value = version + self.generation / 100 if version else 0.0
        self.trainer = SendingWorker("actor/0", self.transport, {"w": torch.full((4,), value)})
        assert self.sync.go_on(self._sync(), version) is self.sync
        if self.sync.version < version:
            asyncio.run(self.sync.update(version))
            assert self.sync.number > seen, "what one trainer offered is taken for what another did"
        self.version, self.value = version, value

    def check(self) -> None:
        """Whoever serves, serves what the trainer has, and nothing is left open."""
        assert self.sync.version == self.version
        for replica in self.replicas:
            assert replica.staged is None
            assert not replica.version or torch.equal(replica.served["w"], torch.full((4,), self.value))
            assert replica.version == self.sync.number == self.version + self.pool.ahead
        assert not self.transport.segments


@given(st.lists(st.one_of(st.sampled_from(["step", "trainer", "replica"]), st.integers(0, 5)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_wherever_trainers_are_lost_the_fleet_serves_the_version_they_go_on_from(moves: list[str | int]) -> None:
    """Steps, updates that break half way and losses in any order; an integer is how far the trainer goes back."""
    run = Run()
    for move in moves:
        if isinstance(move, int):
            run.lose_trainer(max(0, run.version - move))
        elif move == "step":
            run.step()
        else:
            run.step(DIED if move == "trainer" else WeightSyncError("refused"), move)
        run.check()
    run.transport.close()


def test_a_fleet_that_was_never_updated_serves_the_beginning_as_it_is() -> None:
    """Nothing is sent: every engine started with the weights the trainers start with."""
    run = Run()

    run.lose_trainer(0)

    assert [replica.calls for replica in run.replicas] == [[], []]
    assert (run.sync.version, run.pool.ahead) == (0, 0)
    run.transport.close()


def test_an_older_version_is_refused_unless_the_trainers_are_others() -> None:
    """One trainer never goes back."""
    run = Run()
    run.step()
    run.step()

    with pytest.raises(VersionRegressed, match="version 1 cannot be sent to the fleet"):
        asyncio.run(run.sync.update(1))
    run.lose_trainer(1)
    with pytest.raises(VersionRegressed, match="it already serves 1"):
        asyncio.run(run.sync.update(1))

    run.check()
    run.transport.close()


def test_nothing_is_sent_between_two_trainers() -> None:
    """A replica that joins then gets the weights the next trainer goes on from, with all others."""
    run = Run(1)
    run.step()
    run.step()
    run.sync.disconnect()
    late = Engine("rollout.1/0", run.transport, ["w"])
    run.pool.add(late)
    run.trainer.calls.clear()

    assert asyncio.run(run.sync.catch_up()) is None
    assert run.trainer.calls == late.calls == []
    run.replicas.append(late)
    run.lose_trainer(1)

    run.check()
    assert run.pool.num_serving == 2
    run.transport.close()


@pytest.mark.parametrize("interrupted", [False, True])
def test_tokens_are_stamped_with_the_policy_s_version(interrupted: bool) -> None:
    """Engines count on; whoever asks the pool sees the version that is trained on, also of a request in two parts."""

    async def test() -> list[tuple[int, int, int]]:
        clock = StepClock()
        engine = ScriptedEngine(clock, length=lambda _: 3)
        engine.version = 7
        pool = InferencePool([EndableWorker(engine, clock=clock)], clock=clock)
        pool.ahead = 5
        request = GenerationRequest(request_id="r", input_ids=(1,), sampling=SamplingParams(max_new_tokens=3))  # type: ignore[arg-type]
        asked = asyncio.ensure_future(pool.generate(request))
        if interrupted:
            while not (await engine.status()).tokens_generated:
                await clock.advance(1.0)
            await engine.pause(PauseMode.ABORT)
            engine.version = 8
            await engine.resume()
        while not asked.done():
            await clock.advance(1.0)
        return [(span.start, span.stop, span.version) for span in asked.result().version_spans]

    assert asyncio.run(test()) == ([(0, 1, 2), (1, 3, 3)] if interrupted else [(0, 3, 2)])
