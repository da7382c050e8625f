"""The fleet as one engine: who is asked, what happens when a replica fails, how an interrupted request goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from attrs import evolve
from tests.benches.rollouts import drive

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed, NoReplica, PromptTooLong, WorkerDied, WorkerTimeout
from areal_core.contract.inference import (
    Generation,
    GenerationRequest,
    PauseMode,
    SamplingParams,
    VersionSpan,
)
from areal_core.fleet.breaker import Breaker, BreakerState
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import END_TOKEN, ScriptedEngine, ScriptedWorker


class Fleet:
    """Scripted replicas behind a pool, on one clock. Every request has `length` tokens in all."""

    def __init__(self, num_replicas: int, *, length: int = 4, context_length: int = 0, **policy: Any) -> None:
        self.clock = StepClock()
        self.engines = [
            ScriptedEngine(self.clock, length=lambda _request: length, context_length=context_length)
            for _ in range(num_replicas)
        ]
        self.workers = [
            ScriptedWorker(engine, id=f"infer/{number}", clock=self.clock) for number, engine in enumerate(self.engines)
        ]
        self.pool = InferencePool(self.workers, policy=PoolPolicy(**policy), clock=self.clock)

    async def generate(self, number: int = 0, *, affinity: Sequence[str] = (), budget: int = 16) -> Generation:
        return await drive(self.clock, self.pool.generate(request(number, budget=budget), affinity=affinity))

    @property
    def served(self) -> list[int]:
        return [len(engine.requests) for engine in self.engines]


def request(number: int = 0, *, budget: int = 16, prompt: tuple[int, ...] = (5, 6)) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{number}", input_ids=prompt, sampling=SamplingParams(max_new_tokens=budget, seed=7)
    )


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_requests_go_to_the_least_loaded_replica() -> None:
    """Eight requests at once are spread two to each of four replicas."""

    async def test() -> None:
        fleet = Fleet(4)
        await drive(fleet.clock, asyncio.gather(*(fleet.pool.generate(request(n)) for n in range(8))))

        assert fleet.served == [2, 2, 2, 2]

    run(test)


def test_a_session_stays_on_its_replica_until_that_is_overloaded() -> None:
    """Turns of one session share a prefix cache; more than `affinity_slack` behind, it moves."""

    async def test() -> None:
        fleet = Fleet(2, affinity_slack=1)
        for turn in range(3):
            await fleet.generate(turn, affinity=("session", "group"))
        assert fleet.served == [3, 0]

        burst = [fleet.pool.generate(request(n), affinity=("session", "group")) for n in range(10, 16)]
        await drive(fleet.clock, asyncio.gather(*burst))
        assert fleet.served == [5, 4], "the third request of the burst moves, the session's home with it"

    run(test)


def test_a_new_session_follows_its_group() -> None:
    """Members of a group share the prompt, so the first request of a member goes where the group is."""

    async def test() -> None:
        fleet = Fleet(2)
        await fleet.generate(0, affinity=("a#0", "a"))
        other = asyncio.ensure_future(fleet.pool.generate(request(1), affinity=("b#0", "b")))
        await asyncio.sleep(0)
        await fleet.generate(2, affinity=("a#1", "a"))
        await other

        assert fleet.served == [3, 0]

    run(test)


def test_a_failed_request_is_made_again_elsewhere() -> None:
    """GenerationFailed and WorkerTimeout of one replica are answered by another; nobody outside notices."""

    async def test() -> None:
        fleet = Fleet(2, request_timeout_s=50.0)
        fleet.workers[0].fail(GenerationFailed("out of cache"))
        first = await fleet.generate(0)
        fleet.workers[0].hang()
        second = await fleet.generate(1)

        assert first.output_ids == second.output_ids
        assert [worker.calls.count("generate") for worker in fleet.workers] == [2, 2], "asked, then the other"

    run(test)


def test_a_replica_that_dies_hands_its_requests_over_and_is_never_asked_again() -> None:
    """Death in the middle of a request costs the tokens of that call, nothing else."""

    async def test() -> None:
        fleet = Fleet(2, cooldown_s=1.0)
        pending = asyncio.ensure_future(fleet.pool.generate(request()))
        await fleet.clock.advance(2.0)
        fleet.workers[0].die()
        generation = await drive(fleet.clock, pending)
        await fleet.clock.advance(1000.0)
        await fleet.generate(1)

        assert generation.stop_reason is StopReason.STOP
        assert fleet.served == [1, 2]
        assert [replica.healthy for replica in fleet.pool.replicas] == [False, True]

    run(test)


def test_the_last_death_names_every_replica_with_rank_and_log() -> None:
    """NoReplica tells worker, rank and last log lines of each, and has the last death as its cause."""

    async def test() -> None:
        fleet = Fleet(2)
        for number, worker in enumerate(fleet.workers):
            worker.die((f"CUDA error {number}",))

        with pytest.raises(NoReplica) as caught:
            await fleet.generate()
        assert isinstance(caught.value.__cause__, WorkerDied)
        for number in range(2):
            assert f"worker infer/{number} died" in caught.value.why
            assert f"rank {number}" in caught.value.why
            assert f"CUDA error {number}" in caught.value.why

    run(test)


def test_errors_of_the_request_itself_are_not_tried_elsewhere() -> None:
    """A prompt too long for one replica is too long for all; it says nothing about the replica's health."""

    async def test() -> None:
        fleet = Fleet(2, context_length=3, failure_threshold=1)
        with pytest.raises(PromptTooLong):
            await drive(fleet.clock, fleet.pool.generate(request(prompt=(5, 6, 7))))

        assert sum(fleet.served) == 1
        assert all(replica.usable for replica in fleet.pool.replicas)

    run(test)


def test_the_only_replica_failing_once_is_a_retryable_error() -> None:
    """Nothing to fail over to: the error itself comes out, for the executor to retry."""

    async def test() -> None:
        fleet = Fleet(1)
        fleet.workers[0].fail(GenerationFailed("hiccup"))
        with pytest.raises(GenerationFailed, match="hiccup"):
            await fleet.generate()

        assert (await fleet.generate()).stop_reason is StopReason.STOP

    run(test)


def test_a_replica_that_keeps_failing_is_left_alone_until_the_cooldown_is_over() -> None:
    """Open after three incidents in a row; one trial after the cooldown; closed again by its success."""

    async def test() -> None:
        fleet = Fleet(2, failure_threshold=3, cooldown_s=30.0)
        fleet.workers[0].fail(GenerationFailed("broken"), times=3)
        for number in range(6):
            await fleet.generate(number)
        assert fleet.workers[0].calls == ["generate"] * 3
        assert fleet.pool.replicas[0].breaker.state is BreakerState.OPEN

        await fleet.clock.advance(31.0)
        await fleet.generate(7)
        assert len(fleet.workers[0].calls) == 4
        assert fleet.pool.replicas[0].breaker.state is BreakerState.CLOSED

    run(test)


def test_a_replica_whose_trial_was_cancelled_is_tried_again() -> None:
    """Its episode's time was over, or its group failed: nothing is known of the replica, which is not given up."""

    async def test() -> None:
        fleet = Fleet(2, failure_threshold=1, cooldown_s=5.0)
        fleet.workers[0].fail(GenerationFailed("out of cache"))
        await fleet.generate(1)
        await fleet.clock.advance(5.0)
        trial = asyncio.ensure_future(fleet.pool.generate(request()))
        await fleet.clock.advance(1.0)
        assert fleet.pool.replicas[0].breaker.state is BreakerState.HALF_OPEN
        trial.cancel()
        await fleet.clock.settle()

        fleet.pool.exclude("infer/1", RuntimeError("gone"))
        assert (await fleet.generate(2)).output_ids

    run(test)


def test_a_replica_at_rest_is_drained_at_once() -> None:
    """Also after it has served: nobody waits for requests that have ended."""

    async def test() -> None:
        fleet = Fleet(2)
        await fleet.generate()
        before = fleet.clock.now()
        for worker in fleet.workers:
            await fleet.pool.drain(worker.id)

        assert fleet.clock.now() == before

    run(test)


def test_a_trial_that_its_caller_gives_up_leaves_room_for_another() -> None:
    """It says nothing about the replica; of any other request nothing changes."""

    async def test() -> None:
        clock = StepClock()
        breaker = Breaker(threshold=1, cooldown_s=5.0, clock=clock)
        late = breaker.begin()
        breaker.failure(breaker.begin())
        await clock.advance(5.0)
        trial = breaker.begin()

        breaker.cancelled(late)
        assert (breaker.state, breaker.allows) == (BreakerState.HALF_OPEN, False)
        breaker.cancelled(trial)
        assert (breaker.state, breaker.allows) == (BreakerState.OPEN, True)
        breaker.success(breaker.begin())
        assert breaker.state is BreakerState.CLOSED

    run(test)


def test_failures_between_answers_never_open_the_breaker() -> None:
    """Failures count in a row: one that was answered since is not held against a replica, a week later either."""
    breaker = Breaker(threshold=2, cooldown_s=5.0, clock=StepClock())
    for _ in range(5):
        breaker.failure(breaker.begin())
        assert breaker.allows
        breaker.success(breaker.begin())
    breaker.failure(breaker.begin())
    breaker.failure(breaker.begin())
    assert not breaker.allows


def test_requests_that_fail_together_are_one_incident() -> None:
    """Sixty requests lost at once do not open the breaker; a failed trial opens it again at once."""

    async def test() -> None:
        clock = StepClock()
        breaker = Breaker(threshold=2, cooldown_s=5.0, clock=clock)
        tickets = [breaker.begin() for _ in range(60)]
        for ticket in tickets:
            breaker.failure(ticket)
        assert breaker.allows

        breaker.failure(breaker.begin())
        assert not breaker.allows
        await clock.advance(5.0)
        trial = breaker.begin()
        assert (breaker.state, breaker.allows) == (BreakerState.HALF_OPEN, False)
        breaker.failure(trial)
        assert not breaker.allows
        await clock.advance(5.0)
        assert breaker.allows, "a trial that failed is not the last one"
        breaker.success(breaker.begin())
        assert breaker.state is BreakerState.CLOSED

    run(test)


@pytest.mark.parametrize("abort_after", [0.5, 1.5, 2.5, 3.5])
def test_an_aborted_request_goes_on_as_if_uninterrupted(abort_after: float) -> None:
    """Same tokens as without the abort; the spans tell which version made which; the budget counts once."""

    async def test() -> None:
        calm = await Fleet(1, length=6).generate(budget=5)
        fleet = Fleet(1, length=6)
        pending = asyncio.ensure_future(fleet.pool.generate(request(budget=5)))
        await fleet.clock.advance(abort_after)
        fleet.pool.suspend()
        await fleet.engines[0].pause(PauseMode.ABORT)
        fleet.engines[0].version = 1
        await fleet.clock.advance(100.0)
        num_calls = len(fleet.engines[0].requests)
        await fleet.engines[0].resume()
        fleet.pool.release()
        generation = await drive(fleet.clock, pending)

        made = int(abort_after)
        old = (VersionSpan(start=0, stop=made, version=0),) if made else ()
        assert num_calls == 1, "a suspended pool waits, it does not ask again and again"
        assert generation.output_ids == calm.output_ids
        assert generation.logprobs == calm.logprobs
        assert generation.version_spans == (*old, VersionSpan(start=made, stop=5, version=1))
        assert generation.stop_reason is calm.stop_reason is StopReason.LENGTH
        assert [r.num_prior for r in fleet.engines[0].requests] == [0, made]

    run(test)


def test_an_interrupted_request_may_go_on_at_another_replica() -> None:
    """Tokens of the first replica are the prompt of the second; nothing is generated twice."""

    async def test() -> None:
        fleet = Fleet(2, length=6)
        pending = asyncio.ensure_future(fleet.pool.generate(request(), affinity=("s",)))
        await fleet.clock.advance(2.0)
        fleet.pool.exclude("infer/0", RuntimeError("left behind by a weight update"))
        await fleet.engines[0].pause(PauseMode.ABORT)
        generation = await drive(fleet.clock, pending)

        assert len(generation.output_ids) == 6
        assert generation.output_ids[-1] == END_TOKEN
        assert fleet.engines[1].requests[0].input_ids == (5, 6, *generation.output_ids[:2])
        assert generation.version_spans == (VersionSpan(start=0, stop=6, version=0),)

    run(test)


def test_who_failed_a_request_once_may_be_asked_for_what_is_left_of_it() -> None:
    """A replica is passed over until another one has answered, not for as long as the request lasts."""

    async def test() -> None:
        fleet = Fleet(2, length=6)
        fleet.workers[0].fail(GenerationFailed("out of cache"))
        pending = asyncio.ensure_future(fleet.pool.generate(request()))
        await fleet.clock.advance(2.0)
        fleet.pool.exclude("infer/1", RuntimeError("left behind by a weight update"))
        await fleet.engines[1].pause(PauseMode.ABORT)
        generation = await drive(fleet.clock, pending)

        assert len(generation.output_ids) == 6
        assert fleet.served == [1, 1]

    run(test)


def test_tokens_that_were_prior_already_stay_prior_when_a_request_goes_on() -> None:
    """What a request begins with and what it has made since are counted together: draws go on at their places."""

    async def test() -> None:
        fleet = Fleet(1, length=6)
        begun = evolve(request(prompt=(5, 6, 7)), num_prior=1)
        pending = asyncio.ensure_future(fleet.pool.generate(begun))
        await fleet.clock.advance(2.0)
        await fleet.engines[0].pause(PauseMode.ABORT)
        await fleet.engines[0].resume()
        await drive(fleet.clock, pending)

        first, second = fleet.engines[0].requests
        assert (first.num_prior, second.num_prior) == (1, 1 + len(second.input_ids) - 3)

    run(test)


def test_aborts_without_a_single_token_do_not_go_on_for_ever() -> None:
    """Progress is guaranteed: a request that only ever comes back empty fails."""

    class Aborting(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Generation:
            return Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.ABORTED)

    async def test() -> None:
        clock = StepClock()
        pool = InferencePool([ScriptedWorker(Aborting(clock), clock=clock)], clock=clock)

        with pytest.raises(GenerationFailed, match="16 times without a token"):
            await drive(clock, pool.generate(request()))

    run(test)


def test_a_request_that_gets_on_now_and_then_may_be_interrupted_as_often_as_it_is() -> None:
    """Many updates while it waits are no standstill: only interruptions in a row without a token are counted."""

    class Slow(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Generation:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked % 10:
                return Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.ABORTED)
            return Generation(
                output_ids=(4,),
                logprobs=(-0.1,),
                version_spans=(VersionSpan(start=0, stop=1, version=0),),
                stop_reason=StopReason.STOP if request.num_prior == 4 else StopReason.ABORTED,
            )

    async def test() -> None:
        clock = StepClock()
        pool = InferencePool([ScriptedWorker(Slow(clock), clock=clock)], clock=clock)

        assert (await drive(clock, pool.generate(request()))).output_ids == (4,) * 5

    run(test)


@pytest.mark.parametrize(
    "broken",
    [
        {"logprobs": (-0.1,)},
        {"version_spans": (VersionSpan(start=0, stop=1, version=2),)},
        {"version_spans": (VersionSpan(start=0, stop=1, version=2), VersionSpan(start=1, stop=2, version=1))},
        {"version_spans": (VersionSpan(start=1, stop=2, version=1),)},
    ],
)
def test_an_answer_without_a_version_for_every_token_is_refused(broken: dict[str, Any]) -> None:
    """The pool never fills in a version of its own: such an answer is a failure of the replica."""

    class Careless(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Generation:
            whole = Generation(
                output_ids=(4, 5),
                logprobs=(-0.1, -0.2),
                version_spans=(VersionSpan(start=0, stop=2, version=1),),
                stop_reason=StopReason.STOP,
            )
            return evolve(whole, **broken)

    async def test() -> None:
        clock = StepClock()
        pool = InferencePool([ScriptedWorker(Careless(clock), clock=clock)], clock=clock)

        with pytest.raises(GenerationFailed, match="infer/0"):
            await drive(clock, pool.generate(request()))

    run(test)


def test_a_cancelled_request_frees_its_slot_in_the_engine() -> None:
    """Cancelling the caller cancels the call and leaves no task."""

    async def test() -> None:
        fleet = Fleet(1)
        pending = asyncio.ensure_future(fleet.pool.generate(request()))
        await fleet.clock.advance(1.0)
        pending.cancel()
        await fleet.clock.settle()

        assert (await fleet.engines[0].status()).num_running == 0
        assert fleet.pool.replicas[0].in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


def test_held_back_requests_fail_within_their_deadline() -> None:
    """A pool that is never released gives an error, not a hang."""

    async def test() -> None:
        fleet = Fleet(1, request_timeout_s=60.0)
        fleet.pool.suspend()

        with pytest.raises(GenerationFailed, match="held back for 60 s"):
            await fleet.generate()

    run(test)


def test_every_replica_in_service_gets_a_fleet_call() -> None:
    """Results and errors come by worker id; a replica that died leaves service, a slow one stays."""

    async def test() -> None:
        fleet = Fleet(3)
        fleet.workers[1].die()
        answers = await drive(fleet.clock, fleet.pool.each("resume", timeout_s=5.0))
        status = await drive(fleet.clock, fleet.pool.status())

        assert answers["infer/0"] is None
        assert isinstance(answers["infer/1"], WorkerDied)
        assert [replica.id for replica in fleet.pool.replicas if replica.healthy] == ["infer/0", "infer/2"]
        assert isinstance(status["infer/1"], WorkerDied)
        assert getattr(status["infer/2"], "version", None) == 0

    run(test)


def test_a_timeout_of_every_replica_comes_out_as_itself() -> None:
    """With all replicas silent the caller learns of the timeout, not of a generic failure."""

    async def test() -> None:
        fleet = Fleet(1, request_timeout_s=9.0)
        fleet.workers[0].hang()

        with pytest.raises(WorkerTimeout, match="infer/0 did not answer generate within 9 s"):
            await fleet.generate()

    run(test)
