"""What a workflow holds: seeds of its own, the run's parameters unless it gives others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from tests.benches.rollouts import NoTokenizer, drive

from areal_core.contract.abilities import asked_of
from areal_core.contract.errors import BatchError, ConfigError, RolloutError, WorkerTimeout
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import IMAGES, Grammar, PauseMode, SamplingParams, Structure
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.trajectory import NO_VERSION, from_generation
from areal_core.contract.workflow import RewardInput, Session
from areal_core.fleet.pool import InferencePool
from areal_core.rollout.session import PoolSession, PoolSessions, derive_seed
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import ScriptedEngine, ScriptedWorker


class Bench:
    """One scripted replica and the sessions on it."""

    def __init__(self, seed: int = 1, sampling: SamplingParams | None = None) -> None:
        self.clock = StepClock()
        self.engine = ScriptedEngine(self.clock)
        self.sessions = PoolSessions(
            pool=InferencePool([ScriptedWorker(self.engine, clock=self.clock)], clock=self.clock),
            rewards=None,
            tokenizer=NoTokenizer(),
            sampling=sampling or SamplingParams(max_new_tokens=8),
            seed=seed,
        )

    def open(self, member: int = 0) -> PoolSession:
        return self.sessions.open(task_id=TaskId("train/0/1"), name=f"n{member}", seed_name=f"train/0/1#{member}.0")

    async def seeds(self, *params: SamplingParams | None, member: int = 0) -> list[int | None]:
        session = self.open(member)
        before = len(self.engine.requests)
        for sampling in params:
            await drive(self.clock, session.generate([5], sampling))
        return [request.sampling.seed for request in self.engine.requests[before:]]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_every_turn_of_every_member_has_a_seed_of_its_own() -> None:
    """Seeds repeat from run to run, and differ between turns, members and run seeds."""

    async def test() -> None:
        one = await Bench().seeds(None, None)
        assert one == await Bench().seeds(None, None)
        assert len({*one, *await Bench().seeds(None, None, member=1), *await Bench(seed=2).seeds(None, None)}) == 6
        assert all(seed is not None and 0 <= seed < 2**63 for seed in one)

    run(test)


def test_what_is_asked_at_once_is_not_one_question() -> None:
    """Requests of one episode that run beside each other have seeds and names of their own."""

    async def test() -> None:
        bench = Bench()
        session = bench.open()
        await drive(bench.clock, asyncio.gather(*(session.generate([5]) for _ in range(3))))
        asked = bench.engine.requests
        assert len({request.sampling.seed for request in asked}) == len({request.request_id for request in asked}) == 3

    run(test)


def test_a_seed_the_workflow_gives_is_kept_and_one_of_the_run_is_a_base() -> None:
    """Only explicit parameters with a seed set it literally; otherwise all members would sample the same."""

    async def test() -> None:
        assert await Bench().seeds(SamplingParams(seed=42)) == [42]
        assert await Bench().seeds(SamplingParams(seed=None)) == [derive_seed(1, "train/0/1#0.0", 0)]
        based = Bench(sampling=SamplingParams(seed=42))
        assert await based.seeds(None) == [derive_seed(42, "train/0/1#0.0", 0)]
        copied = SamplingParams(seed=42, max_new_tokens=7)  # the session's own but for a limit, as an endpoint makes it
        assert await based.seeds(copied) == await based.seeds(None)

    run(test)


def test_it_is_a_session_and_ends_with_its_episode() -> None:
    """The contract's protocol holds; after close nothing more can be asked; a missing reward is named."""

    async def test() -> None:
        session = Bench().open()
        assert isinstance(session, Session)
        with pytest.raises(ConfigError, match="the run has none"):
            await session.reward(RewardInput(prompt="", completion="", completion_ids=(), stop_reason="stop", row={}))
        await session.close()
        with pytest.raises(RolloutError, match="is over"):
            await session.generate([5])

    run(test)


def test_tokens_are_counted() -> None:
    """`num_generated` adds up what every turn gave."""

    async def test() -> None:
        bench = Bench()
        session = bench.open()
        made = [await drive(bench.clock, session.generate([5])) for _ in range(3)]

        assert session.num_generated == sum(len(generation.output_ids) for generation in made) > 0

    run(test)


def test_a_structure_goes_with_the_turn_that_asks_for_it() -> None:
    """The engine is asked for the structure of that turn, and of no other."""

    async def test() -> None:
        bench = Bench()
        session, yes = bench.open(), Structure(grammar=Grammar.REGEX, text="yes|no")
        await drive(bench.clock, session.generate([5], structure=yes))
        await drive(bench.clock, session.generate([5]))
        assert [request.structure for request in bench.engine.requests] == [yes, None]

    run(test)


def test_images_go_with_the_turn_that_shows_them() -> None:
    """The request carries them in their order; one without any asks for nothing an engine would have to claim."""

    async def test() -> None:
        bench = Bench()
        session = bench.open()
        await drive(bench.clock, session.generate([5], images=[b"one", b"two"]))
        await drive(bench.clock, session.generate([5]))
        assert [request.extras for request in bench.engine.requests] == [{IMAGES: (b"one", b"two")}, {}]
        assert [asked_of(request)[-1:] == ("images",) for request in bench.engine.requests] == [True, False]

    run(test)


def test_an_interrupted_request_goes_on_with_its_images() -> None:
    """An engine that was not told them again would go on blind."""

    async def test() -> None:
        bench = Bench()
        asked = asyncio.ensure_future(bench.open().generate([5], images=[b"one"]))
        await bench.clock.advance(1.0)
        await bench.engine.pause(PauseMode.ABORT)
        await bench.engine.resume()
        await drive(bench.clock, asked)
        assert [request.num_prior for request in bench.engine.requests] == [0, 1]
        assert [request.extras for request in bench.engine.requests] == [{IMAGES: (b"one",)}] * 2

    run(test)


def test_a_session_tells_the_token_that_stands_for_an_image() -> None:
    """It is the policy's own; None where the policy takes no images."""

    async def test() -> None:
        bench = Bench()
        assert bench.open().image_token_id is None
        bench.sessions.image_token_id = 66
        assert bench.open().image_token_id == 66

    run(test)


class Reader(ScriptedEngine):
    """Reads one call of every tool it is told of; the first reading takes too long where `slow`."""

    slow = False

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        if self.slow:
            raise WorkerTimeout("the replica did not answer parse_tool_calls")
        return ToolParse(
            content=text, calls=[ToolCall(name=tool["function"]["name"], arguments="{}") for tool in tools]
        )


def test_tool_calls_are_read_by_a_replica_that_answers() -> None:
    """The engine's own parser reads them, on another replica where the first does not answer."""

    async def test() -> None:
        clock = StepClock()
        engines = [Reader(clock), Reader(clock)]
        engines[0].slow = True
        workers = [ScriptedWorker(engine, id=f"infer/{n}", clock=clock) for n, engine in enumerate(engines)]
        sessions = PoolSessions(
            pool=InferencePool(workers, clock=clock),
            rewards=None,
            tokenizer=NoTokenizer(),
            sampling=SamplingParams(),
            seed=1,
        )
        session = sessions.open(task_id=TaskId("train/0/1"), name="n", seed_name="train/0/1#0.0")
        read = await drive(clock, session.parse_tool_calls("add(1)", [{"function": {"name": "add"}}]))
        assert read == ToolParse(content="add(1)", calls=(ToolCall(name="add", arguments="{}"),))
        assert [worker.calls for worker in workers] == [["parse_tool_calls"]] * 2

    run(test)


def test_what_an_adapter_generated_is_of_no_version_of_the_policy() -> None:
    """The request names it, the answer's version is -1; a turn without one is asked and stamped as ever."""

    async def test() -> None:
        bench = Bench()
        session = bench.open()
        theirs = await drive(bench.clock, session.generate([5], adapter="critic"))
        ours = await drive(bench.clock, session.generate([5]))

        assert [request.adapter for request in bench.engine.requests] == ["critic", ""]
        assert {span.version for span in theirs.version_spans} == {NO_VERSION}
        assert {span.version for span in ours.version_spans} == {0}
        assert theirs.version_spans[-1].stop == len(theirs.output_ids)
        with pytest.raises(BatchError, match="carries no policy version"):
            from_generation([5], theirs, 1.0)

    run(test)
