"""The choice of a replica, against a look at every one of them, over any history of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed, PromptTooLong, WorkerDied, WorkerTimeout
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.fleet.breaker import Breaker
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.fleet.replica import Replica
from areal_core.testing.clock import StepClock

ANSWER = Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.STOP)
REQUEST = GenerationRequest(request_id="r", input_ids=(5,))
ERRORS = (GenerationFailed, WorkerTimeout, WorkerDied, PromptTooLong)


class Asked:
    """A worker that answers when it is told to."""

    host = "127.0.0.1"

    def __init__(self, number: int) -> None:
        self.id = f"infer/{number}"
        self.calls: list[asyncio.Future[Generation]] = []

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:  # Any: as in the contract
        if method != "generate":
            return None
        self.calls.append(asyncio.get_running_loop().create_future())
        return await self.calls[-1]


class Compared(InferencePool):
    """A pool that looks at every replica beside each choice it makes."""

    def __init__(self, *given: Any, **options: Any) -> None:  # Any: as for InferencePool
        super().__init__(*given, **options)
        self.choices = 0

    def _choose(self, affinity: Sequence[str], tried: Sequence[Replica]) -> Replica | None:
        wanted, chosen = self._by_looking(affinity, tried), super()._choose(affinity, tried)
        self.choices += 1
        assert chosen is wanted, [(replica.id, replica.in_flight, replica.usable) for replica in self.replicas]
        return chosen

    def _by_looking(self, affinity: Sequence[str], tried: Sequence[Replica]) -> Replica | None:
        usable = [replica for replica in self.replicas if replica.usable and replica not in tried]
        if not usable:
            return None
        least = min(usable, key=lambda replica: replica.in_flight)
        home = next((self._homes[name] for name in affinity if name in self._homes), None)
        if home in usable and home.in_flight <= least.in_flight + self._policy.affinity_slack:
            return home
        return least


class FleetMachine(RuleBasedStateMachine):
    """Requests that begin, end, fail and are given up while replicas break, recover, come, leave and die."""

    @initialize(replicas=st.integers(1, 5), slack=st.integers(0, 2), threshold=st.integers(1, 3))
    def begin(self, replicas: int, slack: int, threshold: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = StepClock()
        self.workers = [Asked(number) for number in range(replicas)]
        policy = PoolPolicy(affinity_slack=slack, failure_threshold=threshold, cooldown_s=5.0, drain_s=8.0)
        self.pool = Compared(self.workers, policy=policy, clock=self.clock)
        self.tasks: list[asyncio.Task[Any]] = []  # Any: results are not looked at
        self.number = replicas

    def settle(self) -> None:
        self.loop.run_until_complete(self.clock.settle())

    @rule(names=st.lists(st.sampled_from("abcd"), max_size=2), count=st.integers(1, 12))
    def ask(self, names: list[str], count: int) -> None:
        for _ in range(count):
            self.tasks.append(self.loop.create_task(self.pool.generate(REQUEST, affinity=names)))
        self.settle()

    @rule(data=st.data(), count=st.integers(1, 12), error=st.sampled_from((None, None, *ERRORS)))
    def answer(self, data: st.DataObject, count: int, error: type[Exception] | None) -> None:
        waiting = [call for worker in self.workers for call in worker.calls if not call.done()]
        for call in data.draw(st.permutations(waiting))[:count] if waiting else ():
            call.set_result(ANSWER) if error is None else call.set_exception(error("as told"))
        self.settle()

    @rule(data=st.data(), seconds=st.sampled_from([0.0, 4.0, 5.0]))
    def break_circuits(self, data: st.DataObject, seconds: float) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        for _ in range(40):
            self.tasks.append(self.loop.create_task(self.pool.generate(REQUEST)))
            self.settle()
            for call in worker.calls:
                if not call.done():
                    call.set_exception(GenerationFailed("out of cache"))
            self.settle()
            if not any(replica.usable for replica in self.pool.replicas if replica.worker is worker):
                break
        self.loop.run_until_complete(self.clock.advance(seconds))

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if pending := [task for task in self.tasks if not task.done()]:
            data.draw(st.sampled_from(pending)).cancel()
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 4.0, 5.0, 9.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(self.clock.advance(seconds))

    @rule()
    def come(self) -> None:
        self.workers.append(Asked(self.number))
        self.pool.add(self.workers[-1])
        self.number += 1

    @rule()
    def admit(self) -> None:
        for replica in self.pool.replicas:
            self.pool.admit(replica.id)

    @precondition(lambda self: len(self.pool.replicas) > 1)
    @rule(data=st.data(), how=st.sampled_from(["drain", "exclude", "remove"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        replica = data.draw(st.sampled_from(self.pool.replicas))
        if how == "drain":
            self.tasks.append(self.loop.create_task(self.pool.drain(replica.id)))
        elif how == "exclude":
            self.pool.exclude(replica.id, RuntimeError("left behind by a weight update"))
        else:
            self.pool.remove(replica.id)
        self.settle()

    @invariant()
    def no_more_is_remembered_than_a_few_entries_each(self) -> None:
        held = self.pool._least_loaded
        assert len(held._entries) + len(held._resting) <= 2 * len(self.workers) + 65

    def teardown(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.settle()
        failed = [task.exception() for task in self.tasks if not task.cancelled()]
        self.loop.close()
        assert not [error for error in failed if isinstance(error, AssertionError)], failed


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_a_choice_looks_at_few_of_many_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand requests to 512 replicas, begun and ended: whether a replica may be asked is asked twice each."""
    looks = []

    def allows(breaker: Breaker) -> bool:
        looks.append(breaker)
        return True

    monkeypatch.setattr(Breaker, "allows", property(allows))

    async def test() -> None:
        workers = [Asked(number) for number in range(512)]
        pool = InferencePool(workers)
        for _ in range(4):
            whole = [asyncio.ensure_future(pool.generate(REQUEST)) for _ in range(250)]
            await asyncio.sleep(0)
            for call in [call for worker in workers for call in worker.calls if not call.done()]:
                call.set_result(ANSWER)
            await asyncio.gather(*whole)
        assert len(pool._least_loaded._entries) <= 2 * 512 + 64

    asyncio.run(test())
    assert 1000 <= len(looks) <= 2000


def test_one_whose_circuit_is_open_is_chosen_again_however_much_went_on_meanwhile() -> None:
    """Hundreds of requests to its neighbour, then the neighbour is gone: it rested long enough, and answers."""

    async def test() -> None:
        clock = StepClock()
        broken, other = workers = [Asked(0), Asked(1)]
        pool = Compared(workers, policy=PoolPolicy(failure_threshold=1, cooldown_s=5.0), clock=clock)
        asked = [asyncio.ensure_future(pool.generate(REQUEST))]
        await clock.settle()
        broken.calls[0].set_exception(GenerationFailed("out of cache"))
        await clock.settle()
        asked += [asyncio.ensure_future(pool.generate(REQUEST)) for _ in range(300)]
        await clock.settle()
        assert (len(broken.calls), len(other.calls)) == (1, 301)
        for call in other.calls:
            call.set_result(ANSWER)
        await asyncio.gather(*asked)

        pool.exclude("infer/1", RuntimeError("gone"))
        await clock.advance(5.0)
        last = asyncio.ensure_future(pool.generate(REQUEST))
        await clock.settle()
        broken.calls[-1].set_result(ANSWER)
        assert await last == ANSWER

    asyncio.run(test())
