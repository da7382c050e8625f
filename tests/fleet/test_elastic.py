"""A fleet that loses, gains and gives up replicas: every request is answered once, by weights that only get newer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.fleets import EndableWorker, Inline, NoBytes, ScriptedLauncher, Trainer

from areal_core.contract.errors import (
    GenerationFailed,
    ModelError,
    NoReplica,
    ResourceError,
    VersionRegressed,
    WeightSyncError,
    WorkerDied,
    WorkerTimeout,
)
from areal_core.contract.inference import Generation, GenerationRequest, PauseMode, SamplingParams
from areal_core.contract.weights import Offer, Receipt
from areal_core.fleet.elastic import ElasticFleet
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.fleet.replica import ReplicaStage
from areal_core.fleet.weight_sync import WeightSync, WeightUpdate
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import END_TOKEN, scripted_token

LENGTH = 6
"""Tokens of every request, a second each."""


class Bench:
    """An elastic fleet with everything it needs, on one clock."""

    def __init__(
        self, num_replicas: int = 1, *, max_replacements: int = 2, pause: PauseMode | None = None, **launch: Any
    ) -> None:
        asyncio.get_running_loop().set_default_executor(Inline())
        self.clock = StepClock()
        self.launcher = ScriptedLauncher(self.clock, length=lambda _request: LENGTH, **launch)
        first = [self.launcher.make() for _ in range(num_replicas)]
        self.pool = InferencePool(first, clock=self.clock, policy=PoolPolicy(drain_s=3.0))
        self.trainer, self.transport = Trainer(), NoBytes()
        self.sync = WeightSync(
            trainers=[self.trainer],  # type: ignore[list-item]
            pool=self.pool,
            transport=self.transport,  # type: ignore[arg-type]
            pause=pause,
            timeout_s=10.0,
            clock=self.clock,
        )
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.fleet = ElasticFleet(
            pool=self.pool,
            sync=self.sync,
            launcher=self.launcher,
            max_replacements=max_replacements,
            tell=lambda kind, **fields: self.events.append((kind, fields)),
        )
        self.fleet.start()
        self.version = 0

    async def train(self, seconds: float = 0.0) -> WeightUpdate:
        """Take one step of that length and bring the fleet to its version."""
        async with self.sync.stepping():
            self.trainer.version = -1
            await self.clock.sleep(seconds)
            self.version += 1
            self.trainer.version = self.version
            return await self.sync.update(self.version)

    def ask(self, number: int) -> asyncio.Future[Generation]:
        sampling = SamplingParams(max_new_tokens=16, seed=number)
        request = GenerationRequest(request_id=f"r{number}", input_ids=(5, 6), sampling=sampling)  # type: ignore[arg-type]
        return asyncio.ensure_future(self.pool.generate(request))

    async def until(self, *waited: asyncio.Future[Any], seconds: int = 1000) -> None:
        """Step the clock, looking after the fleet as the supervisor does, until all is done and nobody moves."""
        for _ in range(4 * seconds):
            if all(future.done() for future in waited) and not self.fleet.moving:
                return
            await self.clock.advance(0.25)
            self.fleet.check()
        raise AssertionError(f"not done within {seconds} virtual seconds: {waited}, {self.pool.replicas}")

    async def seconds(self, seconds: float) -> None:
        for _ in range(int(4 * seconds)):
            await self.clock.advance(0.25)
            self.fleet.check()

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    @property
    def workers(self) -> list[EndableWorker]:
        return list(self.launcher.workers.values())

    def assert_whole(self, size: int) -> None:
        """So many serve, all the version of the run; nothing else lives and nothing is open."""
        stages = {replica.id: replica.stage for replica in self.pool.replicas if replica.healthy}
        assert list(stages.values()) == [ReplicaStage.SERVING] * size
        assert sorted(self.launcher.alive) == sorted(stages)
        assert {self.launcher.workers[name].engine.version for name in stages} == {self.sync.version}
        assert self.transport.num_open == 0
        assert self.fleet.size == size


def assert_answered(number: int, generation: Generation) -> None:
    expected = (*(scripted_token(number, position) for position in range(LENGTH - 1)), END_TOKEN)
    versions = [span.version for span in generation.version_spans]
    assert generation.output_ids == expected
    assert versions == sorted(versions)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_dead_replica_is_replaced_while_the_others_serve() -> None:
    """Its request is answered by another one; the new one joins at the next update, not before."""

    async def test() -> None:
        bench = Bench(2)
        await bench.train()
        asked = [bench.ask(number) for number in range(4)]
        await bench.seconds(2)
        bench.workers[0].die()
        await bench.seconds(30)

        assert [replica.stage for replica in bench.pool.replicas] == [
            ReplicaStage.OUT,
            ReplicaStage.SERVING,
            ReplicaStage.JOINING,
        ]
        assert bench.trainer.sent == [1]
        await bench.train()
        await bench.until(*asked)
        bench.assert_whole(2)
        assert bench.trainer.sent == [1, 2]
        assert bench.kinds() == ["replica_lost", "replica_joined"]
        assert bench.events[0][1]["replaced"] is True
        assert bench.events[1][1] == {"worker": "rollout.2/0", "version": 2, "replicas": 2}
        for number, future in enumerate(asked):
            assert_answered(number, future.result())

    run(test)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_the_only_replica_dies_and_the_version_is_sent_again(version: int) -> None:
    """Requests wait for the replacement; it serves the version the fleet had, without waiting for an update."""

    async def test() -> None:
        bench = Bench(1)
        for _ in range(version):
            await bench.train()
        asked = [bench.ask(number) for number in range(3)]
        await bench.seconds(2)
        bench.workers[0].die()
        await bench.until(*asked)

        bench.assert_whole(1)
        assert bench.sync.version == version
        assert bench.trainer.sent == [*range(1, version + 1), *([version] if version else [])]
        for number, future in enumerate(asked):
            assert_answered(number, future.result())
            assert [span.version for span in future.result().version_spans] == [version]

    run(test)


@pytest.mark.parametrize("when", [0.5, 2.0, 3.5])
def test_the_only_replica_dies_during_a_step_and_the_update_waits(when: float) -> None:
    """Weights of a step under way are never sent as the version before it; the update reaches the replacement."""

    async def test() -> None:
        bench = Bench(1)
        await bench.train()
        step = asyncio.ensure_future(bench.train(seconds=3.0))
        asked = bench.ask(0)
        await bench.seconds(when)
        bench.workers[0].die()
        await bench.until(step, asked)

        step.result()
        assert_answered(0, asked.result())
        bench.assert_whole(1)
        assert bench.sync.version == 2

    run(test)


@pytest.mark.parametrize("method", ["receive_weights", "commit_weights"])
def test_the_only_replica_dies_in_the_update_itself(method: str) -> None:
    """The update is made again for the replacement, with the same version."""

    async def test() -> None:
        bench = Bench(1)
        worker = bench.workers[0]

        async def die(*_: Any) -> None:
            worker.die()

        setattr(worker.engine, method, die)
        step = asyncio.ensure_future(bench.train())
        await bench.until(step)

        step.result()
        bench.assert_whole(1)
        assert (bench.sync.version, bench.trainer.sent) == (1, [1, 1])

    run(test)


def test_losses_beyond_the_bound_are_told_and_the_last_one_ends_the_run() -> None:
    """With `max_replacements` 0 the fleet shrinks; without anybody left the error of the last death is raised."""

    async def test() -> None:
        bench = Bench(2, max_replacements=0)
        bench.workers[0].die()
        await bench.until(bench.ask(0))
        bench.assert_whole(1)
        assert bench.events[0][1]["replaced"] is False

        asked = bench.ask(1)
        await bench.clock.advance(1.0)
        bench.workers[1].die()
        await bench.clock.settle()
        with pytest.raises(WorkerDied, match=r"rollout\.1/0"):
            bench.fleet.check()
        assert isinstance(asked.exception(), NoReplica)

    run(test)


def test_a_replacement_has_the_place_of_the_one_that_died() -> None:
    """On a machine that is full: the dead one gives its devices back before another asks for them."""

    async def test() -> None:
        bench = Bench(2, max_workers=2)
        bench.workers[0].die()
        await bench.until(bench.ask(0))
        await bench.train()
        await bench.until()

        bench.assert_whole(2)
        assert bench.kinds() == ["replica_lost", "replica_joined"]

    run(test)


def test_one_that_waits_to_join_takes_over_from_the_last_that_nobody_replaces() -> None:
    """It is sent the version that the fleet has at once, and not with an update that nobody would come to."""

    async def test() -> None:
        bench = Bench(1, max_replacements=0)
        await bench.train()
        grow = asyncio.ensure_future(bench.fleet.resize(2))
        await bench.seconds(10)
        grow.result()
        assert [replica.stage for replica in bench.pool.replicas] == [ReplicaStage.SERVING, ReplicaStage.JOINING]

        asked = bench.ask(0)
        await bench.seconds(1)
        bench.workers[0].die()
        await bench.until(asked)
        bench.assert_whole(1)
        assert (bench.sync.version, bench.trainer.sent) == (1, [1, 1])
        assert_answered(0, asked.result())

    run(test)


def test_a_replacement_that_does_not_start_is_replaced_too_until_the_bound() -> None:
    """Each failed start is a loss; when none is left to replace, whoever waits is told why."""

    async def test() -> None:
        bench = Bench(1, max_replacements=3)
        bench.launcher.start_failures = [ModelError("broken once"), ModelError("broken twice")]
        bench.workers[0].die()
        await bench.until(bench.ask(0))
        bench.assert_whole(1)
        assert bench.kinds() == ["replica_lost"] * 3 + ["replica_joined"]

        bench.launcher.start_failures = []
        bench.workers[-1].die()
        asked = bench.ask(1)
        with pytest.raises(WorkerDied):
            await bench.until(asked)
        assert isinstance(asked.exception(), NoReplica)

    run(test)


def test_a_silent_replica_is_given_up_only_when_nobody_else_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence may pass; a fleet that is silent as a whole may not."""

    async def test() -> None:
        bench = Bench(2)
        silent: set[str] = {"rollout.0/0"}
        monkeypatch.setattr(
            bench.launcher, "failure", lambda name: WorkerTimeout(f"{name} is silent") if name in silent else None
        )
        await bench.seconds(1)
        assert bench.kinds() == []

        silent.add("rollout.1/0")
        await bench.seconds(1)
        assert bench.kinds() == ["replica_lost", "replica_lost"]
        await bench.until()
        bench.assert_whole(2)

    run(test)


def test_requests_of_the_only_replica_wait_for_its_replacement_when_it_falls_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its calls fail the moment it is silent, before anybody looked after the fleet: nobody hears of it."""

    async def test() -> None:
        bench = Bench(1)
        monkeypatch.setattr(
            bench.launcher,
            "failure",
            lambda name: WorkerTimeout(f"{name} is silent") if name == "rollout.0/0" else None,
        )
        bench.workers[0].fail(WorkerTimeout("rollout.0/0 is silent"), times=3)
        asked = [bench.ask(number) for number in range(3)]
        await bench.clock.settle()
        assert not any(future.done() for future in asked)

        await bench.until(*asked)
        for number, future in enumerate(asked):
            assert_answered(number, future.result())
        assert bench.kinds() == ["replica_lost", "replica_joined"]

    run(test)


def test_the_fleet_grows_and_shrinks_on_request() -> None:
    """New ones join at the next update; those that leave end what they have; the first one stays."""

    async def test() -> None:
        bench = Bench(1)
        await bench.train()
        grow = asyncio.ensure_future(bench.fleet.resize(3))
        await bench.seconds(20)
        assert grow.done() and bench.pool.num_serving == 1
        await bench.train()
        bench.assert_whole(3)

        asked = [bench.ask(number) for number in range(9)]
        await bench.seconds(1)
        await bench.fleet.resize(1)
        await bench.until(*asked)
        bench.assert_whole(1)
        assert bench.launcher.alive == ["rollout.0/0"]
        assert bench.kinds() == ["replica_joined"] * 2 + ["replica_removed"] * 2
        for number, future in enumerate(asked):
            assert_answered(number, future.result())
        assert bench.pool.in_flight == 0

    run(test)


def test_a_replica_that_leaves_during_an_update_goes_after_it() -> None:
    """It takes part to the end, so that the update knows nothing of it."""

    async def test() -> None:
        bench = Bench(2)
        engine = bench.workers[1].engine
        receive = engine.receive_weights

        async def slowly(offer: Offer, version: int) -> Receipt:
            await bench.clock.sleep(3.0)
            return await receive(offer, version)

        engine.receive_weights = slowly  # type: ignore[method-assign]
        step = asyncio.ensure_future(bench.train())
        await bench.seconds(1)
        await bench.fleet.resize(1)
        await bench.until(step)

        assert step.result().excluded == ()
        assert engine.version == 1
        bench.assert_whole(1)

    run(test)


def test_a_replica_that_dies_while_it_leaves_is_not_replaced() -> None:
    """The fleet has the size that was asked for, and its requests are answered by the others."""

    async def test() -> None:
        bench = Bench(2)
        asked = [bench.ask(number) for number in range(4)]
        await bench.seconds(1)
        leaving = asyncio.ensure_future(bench.fleet.resize(1))
        await bench.seconds(1)
        bench.workers[1].die()
        await bench.until(leaving, *asked)

        bench.assert_whole(1)
        assert len(bench.workers) == 2, "nobody was started"
        assert [told["replaced"] for kind, told in bench.events if kind == "replica_lost"] == [False]

    run(test)


@pytest.mark.parametrize("able", [True, False])
def test_a_leaving_replica_hands_long_requests_over(able: bool) -> None:
    """After `drain_s` they are interrupted and continued, or made again where the engine cannot interrupt."""

    async def test() -> None:
        bench = Bench(2)
        asked = [bench.ask(number) for number in range(4)]
        await bench.seconds(1)
        leaving = bench.workers[1]
        if not able:

            async def refuse(_mode: str) -> None:
                raise GenerationFailed("cannot abort")

            leaving.engine.pause = refuse  # type: ignore[method-assign,assignment]
        await bench.fleet.resize(1)
        await bench.until(*asked)

        bench.assert_whole(1)
        prior = [request.num_prior for request in bench.workers[0].engine.requests]
        assert (max(prior) > 0) is able, "an interrupted request goes on from its tokens"
        for number, future in enumerate(asked):
            assert_answered(number, future.result())

    run(test)


def test_growth_beyond_the_machine_is_refused_and_leaves_the_fleet_alone() -> None:
    """All of the new replicas or none."""

    async def test() -> None:
        bench = Bench(1, max_workers=2)
        grow = asyncio.ensure_future(bench.fleet.resize(3))
        await bench.until(grow)

        assert isinstance(grow.exception(), ResourceError)
        bench.assert_whole(1)
        assert bench.kinds() == []

    run(test)


def test_a_joining_replica_that_takes_other_bytes_is_dropped_and_the_update_goes_on() -> None:
    """What goes wrong with a replica that does not serve yet costs that replica only; a serving one, the update."""

    async def test() -> None:
        bench = Bench(1, max_replacements=0)
        await bench.train()
        await bench.clock.settle()
        grow = asyncio.ensure_future(bench.fleet.resize(2))
        await bench.seconds(10)
        grow.result()

        async def forge(_offer: Offer, version: int) -> Receipt:
            return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={"w": "0"})

        bench.workers[1].engine.receive_weights = forge  # type: ignore[method-assign,assignment]
        await bench.train()
        assert bench.sync.version == 2
        await bench.until()
        bench.assert_whole(1)
        assert "replica_lost" in bench.kinds()

        bench.workers[0].engine.receive_weights = forge  # type: ignore[method-assign,assignment]
        with pytest.raises(WeightSyncError):
            await bench.train()
        assert bench.sync.version == 2

    run(test)


def test_only_catching_up_may_send_a_version_twice() -> None:
    """An update to the version served is refused as ever."""

    async def test() -> None:
        bench = Bench(1)
        await bench.train()

        with pytest.raises(VersionRegressed):
            await bench.sync.update(1)
        assert await bench.sync.catch_up() is None, "nobody waits to join"
        assert bench.trainer.sent == [1]

    run(test)


def test_closing_in_the_middle_of_everything_leaves_no_task() -> None:
    """A run that ends does not wait for replicas that come or go, and makes no new ones."""

    async def test() -> None:
        bench = Bench(3)
        bench.workers[0].die()
        bench.fleet.check()
        await bench.fleet.resize(2)
        asked = bench.ask(0)
        await bench.seconds(2)
        await bench.fleet.close()
        await bench.fleet.close()
        made = len(bench.workers)
        bench.workers[1].die()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await bench.clock.settle()

        assert len(bench.workers) == made
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


OPERATIONS = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 3)),
    st.tuples(st.just("train"), st.integers(0, 4)),
    st.tuples(st.just("resize"), st.integers(1, 4)),
    st.tuples(st.just("kill"), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.integers(1, 16)),
)


@settings(max_examples=150, deadline=None)
@given(
    replicas=st.integers(1, 3),
    pause=st.sampled_from([None, PauseMode.KEEP, PauseMode.ABORT]),
    operations=st.lists(OPERATIONS, max_size=25),
)
def test_whatever_comes_goes_and_dies_every_request_is_answered_once(
    replicas: int, pause: PauseMode | None, operations: list[tuple[str, int]]
) -> None:
    """Random growth, shrinkage, deaths and updates: whole answers, versions that never fall, nothing left over."""

    async def test() -> None:
        bench = Bench(replicas, max_replacements=1000, pause=pause)
        asked: list[asyncio.Future[Generation]] = []
        steps: list[asyncio.Future[WeightUpdate]] = []
        wanted, served = replicas, 0
        for what, number in operations:
            if what == "ask":
                asked += [bench.ask(len(asked) + each) for each in range(number)]
            elif what == "train" and (not steps or steps[-1].done()):
                steps.append(asyncio.ensure_future(bench.train(float(number))))
            elif what == "resize":
                resize = asyncio.ensure_future(bench.fleet.resize(number))
                while not resize.done():
                    await bench.seconds(1)
                resize.result()
                wanted = number
            elif what == "kill" and bench.launcher.alive:
                alive = bench.launcher.alive
                bench.launcher.workers[alive[number % len(alive)]].die()
            else:
                await bench.seconds(number / 4)
            assert bench.sync.version >= served
            served = bench.sync.version
        for _ in range(2):  # a step at the end brings in whoever waits to join
            if steps and not steps[-1].done():
                await _done(bench, steps[-1])
            await bench.seconds(60)
            steps.append(asyncio.ensure_future(bench.train()))
        await bench.until(*asked, *steps)

        for step in steps:
            step.result()
        for number, future in enumerate(asked):
            assert_answered(number, future.result())
        bench.assert_whole(wanted)
        assert bench.pool.in_flight == 0

    run(test)


async def _done(bench: Bench, work: asyncio.Future[WeightUpdate]) -> None:
    for _ in range(200):
        if work.done():
            return
        await bench.seconds(1)
    raise AssertionError("the step never ended")
