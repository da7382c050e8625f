"""Trainers and fleet on the same devices: one side at a time, whatever goes wrong, and every request is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.shared_devices import SharedBench

from areal_core.contract.errors import TrainError
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.fleet.turns import FLEETS, Stage
from areal_core.testing.engines import END_TOKEN, scripted_token

LENGTH = 6
ORDER = ["pause", "sleep", "wake", "receive_weights", "pause", "commit_weights", "resume"]
"""What a replica is asked in one step."""


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def ask(bench: SharedBench, number: int) -> asyncio.Future[Generation]:
    sampling = SamplingParams(max_new_tokens=16, seed=number)
    request = GenerationRequest(request_id=f"r{number}", input_ids=(5, 6), sampling=sampling)  # type: ignore[arg-type]
    return asyncio.ensure_future(bench.pool.generate(request))


def assert_answered(number: int, generation: Generation) -> None:
    expected = (*(scripted_token(number, position) for position in range(LENGTH - 1)), END_TOKEN)
    versions = [span.version for span in generation.version_spans]
    assert generation.output_ids == expected
    assert versions == sorted(versions)


def test_devices_change_hands_in_one_order_and_every_role_takes_part() -> None:
    """Sleep, onload, train, send, offload, wake; each once a step, each with its seconds."""

    async def test() -> None:
        bench = SharedBench(2, roles=("actor", "critic", "reference"))
        for version in (1, 2):
            step = asyncio.ensure_future(bench.train())
            await bench.until(step)
            assert step.result().turns == dict.fromkeys((Stage.SLEEP, Stage.ONLOAD, Stage.OFFLOAD, Stage.WAKE), 1.0)
            assert bench.sync.version == version
        roles = ("actor", "critic", "reference")
        assert bench.device.log == 2 * [f"{role} {what}" for what in ("onload", "offload") for role in roles]
        for worker in bench.launcher.workers.values():
            assert worker.calls == 2 * [
                "pause",
                "sleep",
                "wake",
                "receive_weights",
                "pause",
                "commit_weights",
                "resume",
            ]
        assert bench.device.wrong == []
        assert bench.turns.stage is Stage.GENERATING

    run(test)


@pytest.mark.parametrize("after", [0.5, 2.0, 4.0])
def test_requests_in_flight_are_handed_back_and_go_on_under_the_new_weights(after: float) -> None:
    """None is lost or computed twice; those that come in the trainers' turn wait."""

    async def test() -> None:
        bench = SharedBench(2, length=LENGTH)
        asked = [ask(bench, number) for number in range(4)]
        await bench.clock.advance(after)
        step = asyncio.ensure_future(bench.train())
        await bench.clock.advance(3.0)
        late = ask(bench, 4)
        await bench.until(step, late, *asked)
        for number, future in enumerate([*asked, late]):
            assert_answered(number, future.result())
        assert {span.version for span in late.result().version_spans} == {1}
        assert {future.result().version_spans[-1].version for future in asked} == {1}
        assert bench.device.wrong == []

    run(test)


@pytest.mark.parametrize("method", ["pause", "sleep", "wake"])
def test_a_replica_that_does_not_sleep_or_wake_is_gone_before_the_trainers_come(method: str) -> None:
    """The others go on, and another takes its place from the next update on."""

    async def test() -> None:
        bench = SharedBench(2)
        bench.engine(0).refuses.add(method)
        step = asyncio.ensure_future(bench.train())
        await bench.until(step)
        assert bench.launcher.workers["rollout.0/0"].dead
        assert bench.device.wrong == []
        step = asyncio.ensure_future(bench.train())
        await bench.until(step)
        assert bench.pool.num_serving == 2
        assert {bench.engine(number).version for number in (1, 2)} == {2}
        assert bench.device.wrong == []

    run(test)


@pytest.mark.parametrize("when", [0.5, 1.5, 3.0, 4.5, 5.5, 6.5, 9.0])
def test_the_only_replica_dies_and_another_takes_the_weights(when: float) -> None:
    """At any moment of a step: the update waits for one that starts in the fleet's turn. Nobody waits for ever."""

    async def test() -> None:
        bench = SharedBench(1, length=LENGTH)
        asked = ask(bench, 0)
        step = asyncio.ensure_future(bench.train())
        await bench.clock.advance(when)
        bench.launcher.workers["rollout.0/0"].die()
        await bench.until(step, asked)
        assert_answered(0, asked.result())
        assert bench.sync.version == 1
        assert bench.pool.num_serving == 1
        assert bench.device.wrong == []

    run(test)


@pytest.mark.parametrize(("method", "at"), [("onload", Stage.ONLOAD), ("offload", Stage.OFFLOAD)])
def test_a_trainer_that_cannot_leave_or_come_back_ends_the_step_with_its_error(method: str, at: Stage) -> None:
    """The stage names what failed; the trainers can be asked back, to save what there is."""

    async def test() -> None:
        bench = SharedBench(1, roles=("actor", "critic"))
        bench.trainers[1].refuses.add(method)
        step = asyncio.ensure_future(bench.train())
        await bench.clock.advance(20.0)
        with pytest.raises(TrainError, match=f"critic cannot {method}"):
            step.result()
        assert bench.turns.stage is at
        bench.trainers[1].refuses.clear()
        again = asyncio.ensure_future(bench.turns.train())
        await bench.clock.advance(20.0)
        again.result()
        assert bench.turns.stage is Stage.TRAINING
        assert bench.device.trainers == {"actor", "critic"}
        assert bench.device.wrong == []

    run(test)


@pytest.mark.parametrize(("when", "at"), [(0.5, "sleep"), (1.5, "onload"), (2.5, "offload"), (3.5, "wake")])
@pytest.mark.parametrize("to_trainers", [True, False])
def test_a_change_that_was_cut_short_is_taken_up_again(when: float, at: str, to_trainers: bool) -> None:
    """In either direction, from where it stood."""

    async def test() -> None:
        bench = SharedBench(2)

        async def there_and_back() -> None:
            await bench.turns.train()
            await bench.turns.generate()

        change = asyncio.ensure_future(there_and_back())
        await bench.clock.advance(when)
        change.cancel()
        await bench.clock.settle()
        assert bench.turns.stage == at
        again = asyncio.ensure_future(bench.turns.train() if to_trainers else bench.turns.generate())
        await bench.until(again)
        again.result()
        assert bench.turns.stage is (Stage.TRAINING if to_trainers else Stage.GENERATING)
        assert bool(bench.device.trainers) is to_trainers
        assert len(bench.device.fleet) == (0 if to_trainers else 2)
        assert bench.device.wrong == []

    run(test)


def test_a_replica_that_is_made_in_the_trainers_turn_loads_its_weights_in_the_fleets() -> None:
    """Its process is there at once."""

    async def test() -> None:
        bench = SharedBench(1)
        step = asyncio.ensure_future(bench.train(seconds=20.0))
        await bench.clock.advance(5.0)
        assert bench.turns.stage is Stage.TRAINING
        resized = asyncio.ensure_future(bench.fleet.resize(2))
        await bench.clock.advance(10.0)
        assert resized.done()
        assert bench.device.fleet == set()
        await bench.until(step)
        await bench.until(asyncio.ensure_future(bench.train()))
        assert bench.pool.num_serving == 2
        assert bench.device.wrong == []

    run(test)


@pytest.mark.parametrize("given_up", [False, True])
def test_trainers_wait_for_a_replica_that_loads_its_weights(given_up: bool) -> None:
    """Until it sleeps, or until its process is gone if nobody wants it any more."""

    async def test() -> None:
        bench = SharedBench(1)
        resized = asyncio.ensure_future(bench.fleet.resize(2))
        await bench.clock.advance(3.0)
        resized.result()
        bench.engine(1).loads()
        if given_up:
            await bench.fleet.resize(1)
        step = asyncio.ensure_future(bench.train())
        await bench.until(step)
        step.result()
        assert bench.pool.num_serving == (1 if given_up else 2)
        assert bench.device.wrong == []

    run(test)


MOVES = st.one_of(
    st.tuples(st.just("train"), st.sampled_from([0.5, 3.0])),
    st.tuples(st.just("ask"), st.just(0)),
    st.tuples(st.just("pass"), st.sampled_from([0.25, 1.0, 2.5, 7.0])),
    st.tuples(st.just("kill"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["sleep", "wake", "resume"]), st.integers(0, 2)),
    st.tuples(st.just("resize"), st.integers(1, 3)),
)


@given(st.lists(MOVES, max_size=14))
@settings(max_examples=60, deadline=None)
def test_both_sides_are_never_on_the_devices_and_every_request_is_answered(moves: list[tuple[str, float]]) -> None:
    """Whatever dies, refuses, comes or leaves, at whatever moment of whatever step."""

    async def test() -> None:
        bench = SharedBench(2, length=LENGTH)
        steps, asked, resized = (list[asyncio.Future[Any]]() for _ in range(3))
        for kind, value in moves:
            workers = [worker for worker in bench.launcher.workers.values() if not worker.dead]
            if kind == "train" and all(step.done() for step in steps):
                steps.append(asyncio.ensure_future(bench.train(value)))
            elif kind == "ask":
                asked.append(ask(bench, len(asked)))
            elif kind == "pass":
                await bench.clock.advance(value)
            elif kind == "kill" and workers and bench.fleet.size > 0:
                workers[int(value) % len(workers)].die()
                bench.fleet.look()
            elif kind in ("sleep", "wake", "resume") and workers:
                workers[int(value) % len(workers)].engine.refuses.add(kind)  # type: ignore[attr-defined]
            elif kind == "resize":
                resized.append(asyncio.ensure_future(bench.fleet.resize(int(value))))
            assert not (bench.device.trainers if bench.turns.stage in FLEETS else bench.device.fleet)
        await bench.until(*steps, *asked, *resized)
        await bench.until(asyncio.ensure_future(bench.train()))
        for number, future in enumerate(asked):
            assert_answered(number, future.result())
        await bench.until(asyncio.ensure_future(bench.pool.until(lambda: bench.pool.num_serving > 0)))
        serving = [replica.id for replica in bench.pool.replicas if replica.usable]
        assert {bench.launcher.workers[name].engine.version for name in serving} == {bench.version}
        assert bench.device.wrong == []
        await bench.fleet.close()

    run(test)
