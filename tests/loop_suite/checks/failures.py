"""What goes wrong while rolling out: typed, counted, survived or told, never hidden and never a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.benches.rollouts import greedy

from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, EpisodeFailed, GenerationFailed, NoReplica, RolloutError
from areal_core.contract.inference import PauseMode
from areal_core.fleet.pool import PoolPolicy
from areal_core.testing.engines import END_TOKEN, scripted_token

if TYPE_CHECKING:
    from areal_core.contract.inference import Generation

    from ..bench import LoopBench


def _raising(number: int) -> Any:
    """Return a judge that raises for one row. Any: a Judge."""

    def judge(row: Mapping[str, Any], generation: Generation) -> float:
        if row["number"] == number:
            raise RuntimeError("the verifier is on fire")
        return float(len(generation.output_ids))

    return judge


@check("loop.failures.typed", level=Level.LOOP, law=5, spec="index#law-by-law")
async def typed(bench: LoopBench) -> None:
    """A failed episode is counted with its error and leaves no trace in any batch, not even a reward of zero."""
    async with bench.rollouts(prompts=2, group=2, judge=_raising(3), max_failed_share=0.25, num_rows=40) as side:
        groups = [group for _ in range(5) for group in await side.step()]
        stats = side.executor.stats()
    numbers = [group.task.row["number"] for group in groups]
    expect(3 not in numbers, "the prompt whose episode failed was trained on")
    rewards = [t.reward for group in groups for e in group.episodes for t in e.trajectories]
    expect(0.0 not in rewards, "a batch holds a reward of zero that no reward function gave")
    expect(stats.failed == 1, f"{stats.failed} failures are counted, one happened")
    expect(stats.rejected == 0, f"the failure was counted as {stats.rejected} rejections")
    told = str(stats.failures[0])
    expect("train/0/3" in told and "on fire" in told, f"the failure does not name episode and cause: {told}")


@check("loop.failures.too_many", level=Level.LOOP, law=5, spec="index#law-by-law")
async def too_many(bench: LoopBench) -> None:
    """More failures than allowed end the run with the first error, and at the right count."""

    def judge(row: Mapping[str, Any], _generation: Generation) -> float:
        if row["number"] in (2, 4, 6):
            raise RuntimeError(f"broken {row['number']}")
        return 1.0

    for allowed in (0, 2):
        batches = 0
        async with bench.rollouts(prompts=1, group=1, judge=judge, max_failed_share=allowed / 10, staleness=0) as side:
            try:
                for _ in range(10):
                    await side.step()
                    batches += 1
            except EpisodeFailed as error:
                expect("broken" in str(error), f"the error hides its cause: {error}")
                expect(batches == 2 * (allowed + 1) - allowed, f"ended after {batches} batches, {allowed} may fail")
                continue
        raise Violation(f"{allowed} groups may fail; three failed and the run went on")


@check("loop.failures.group_stands_together", level=Level.LOOP, law=5, spec="index#law-by-law")
async def stands_together(bench: LoopBench) -> None:
    """A member that fails takes its whole group out: no baseline is computed over what is left."""
    calls: dict[int, int] = {}

    def judge(row: Mapping[str, Any], _generation: Generation) -> float:
        number = row["number"]
        calls[number] = calls.get(number, 0) + 1
        if number == 1 and calls[number] == 2:
            raise RuntimeError("second member")
        return 1.0

    async with bench.rollouts(prompts=2, group=3, judge=judge, max_failed_share=0.15) as side:
        groups = [group for _ in range(3) for group in await side.step()]
    sizes = {group.task.row["number"]: len(group.episodes) for group in groups}
    expect(1 not in sizes, f"a group with a failed member was trained on with {sizes.get(1)} episodes")
    expect(set(sizes.values()) == {3}, f"groups of {sorted(set(sizes.values()))} episodes, 3 were asked for")


@check("loop.failures.retried", level=Level.LOOP, law=5, spec="index#law-by-law")
async def retried(bench: LoopBench) -> None:
    """A lost request is tried again with the same seeds: the episode is the one it would have been."""

    async def tokens(*, lost: int) -> list[list[int]]:
        async with bench.rollouts(prompts=2, group=1, retries=2) as side:
            side.workers[0].fail(GenerationFailed("a dropped connection"), times=lost)
            groups = [group for _ in range(3) for group in await side.step()]
            expect(side.executor.stats().failed == 0, "a retryable error was not retried")
        return [e.trajectories[0].input_ids.tolist() for group in groups for e in group.episodes]

    whole, disturbed = await tokens(lost=0), await tokens(lost=2)
    expect(whole == disturbed, "a retried episode sampled other tokens than the undisturbed one")


@check("loop.failures.bad_reward", level=Level.LOOP, law=5, spec="index#law-by-law")
async def bad_reward(bench: LoopBench) -> None:
    """A reward that is no finite number is a failure, never trained on."""
    for reward in (float("nan"), float("inf")):
        async with bench.rollouts(prompts=1, group=1, judge=lambda _row, _gen, value=reward: value) as side:
            try:
                await side.step()
            except EpisodeFailed:
                continue
        raise Violation(f"an episode with reward {reward} reached the trainer")


@check("loop.pool.dead_fleet", level=Level.FAULTS, law=9, spec="index#law-by-law")
async def dead_fleet(bench: LoopBench) -> None:
    """When every replica is dead the trainer is told at once, by name, with its last words."""
    async with bench.rollouts(num_replicas=2) as side:
        await side.step()
        waiting = asyncio.ensure_future(side.executor.next_batch())
        await side.clock.settle()
        for worker in side.workers:
            worker.die(("out of memory",))
        await side.clock.advance(120.0)
        if not waiting.done():
            waiting.cancel()
            raise Violation("the fleet has been dead for 120 virtual seconds and the trainer still waits")
        error = waiting.exception()
        expect(isinstance(error, NoReplica), f"a dead fleet is told as {error!r}, not as NoReplica")
        told = str(error)
        named = "infer/0" in told and "infer/1" in told and "out of memory" in told
        expect(named, f"the error does not name the replicas and their last words: {told}")


@check("loop.pool.failover", level=Level.FAULTS, law=9, spec="index#law-by-law")
async def failover(bench: LoopBench) -> None:
    """A replica that dies takes no episode with it: the others finish them, token for token."""

    async def tokens(*, dies: bool) -> list[list[int]]:
        async with bench.rollouts(
            num_replicas=2, prompts=3, group=2, staleness=0, retries=2, length=lambda _r: 9
        ) as side:
            waiting = asyncio.ensure_future(side.executor.next_batch())
            await side.clock.advance(3.0)
            if dies:
                side.workers[0].die()
            groups = await side.drive(waiting)
            expect(side.executor.stats().failed == 0, "episodes failed although a replica was left")
        return [e.trajectories[0].input_ids.tolist() for group in groups for e in group.episodes]

    expect(await tokens(dies=True) == await tokens(dies=False), "episodes that moved to another replica differ")


@check("loop.pool.turns_elsewhere", level=Level.FAULTS, law=9, spec="index#law-by-law")
async def turns_elsewhere(bench: LoopBench) -> None:
    """A request its home replica just failed goes to another one, not back to it."""
    async with bench.rollouts(num_replicas=2, prompts=1, group=1, staleness=0, length=lambda _request: 3) as side:
        for _ in range(2):
            asked = [worker.calls.count("generate") for worker in side.workers]
            side.workers[0].fail(GenerationFailed("a dropped connection"), times=1)
            await side.step()
            made = [worker.calls.count("generate") - before for worker, before in zip(side.workers, asked, strict=True)]
            expect(made[0] <= 1, f"a replica that had just failed a request got it {made[0] - 1} times more")
        expect(side.executor.stats().failed == 0, "an episode failed although the other replica was well")


@check("loop.pool.silent_replica", level=Level.FAULTS, law=9, spec="index#law-by-law")
async def silent_replica(bench: LoopBench) -> None:
    """A replica that never answers costs its deadline, not the run."""
    policy = PoolPolicy(request_timeout_s=30.0)
    async with bench.rollouts(num_replicas=2, prompts=2, group=1, retries=2, policy=policy) as side:
        side.workers[0].hang()
        for _ in range(4):
            groups = await side.step()
            expect(len(groups) == 2, f"a batch of {len(groups)} groups came from a fleet with one silent replica")
        expect(side.clock.now() < 400, f"four batches took {side.clock.now():g} virtual seconds, the deadline is 30")


@check("loop.close.resolves", level=Level.LOOP, law=10, spec="index#law-by-law")
async def close_resolves(bench: LoopBench) -> None:
    """Closing ends whoever waits for a batch with an error, cancels every episode, and may be done twice."""
    async with bench.rollouts(prompts=2, group=2, length=lambda _request: 1000) as side:
        waiting = asyncio.ensure_future(side.executor.next_batch())
        await side.clock.settle()
        before = len(asyncio.all_tasks())
        await side.executor.close()
        await side.executor.close()
        await side.clock.settle()
        expect(waiting.done(), "the trainer still waits for a batch after close")
        expect(isinstance(waiting.exception(), RolloutError), f"close gave {waiting.exception()!r} to who waited")
        left = [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("train/")]
        expect(not left, f"episodes still run after close: {left}; {before} tasks ran before it")


@check("loop.close.evaluations", level=Level.LOOP, law=10, spec="index#law-by-law")
async def close_evaluations(bench: LoopBench) -> None:
    """Closing ends an evaluation that is under way: its caller gets an error, none of its episodes runs on."""
    async with bench.rollouts(prompts=2, group=2, length=lambda _request: 1000) as side:
        rows = [{"input_ids": [5, 4], "number": 0}] * 3
        asked = asyncio.ensure_future(side.executor.evaluate(rows, greedy()))
        await side.clock.settle()
        await side.executor.close()
        await side.clock.settle()
        try:
            expect(asked.done(), "an evaluation still runs after close")
            told = asked.exception() if not asked.cancelled() else None
            expect(isinstance(told, ArealError), f"close gave {told!r} to who waited for an evaluation")
        finally:
            asked.cancel()


@check("loop.session.whole", level=Level.LOOP, law=1, spec="index#law-by-law")
async def session_whole(bench: LoopBench) -> None:
    """An interrupted generation comes back whole: the engine's ids and log-probs in order, one span per version."""
    async with bench.rollouts(prompts=1, group=1, staleness=3, length=lambda _request: 12) as side:
        waiting = asyncio.ensure_future(side.executor.next_batch())
        engine = side.engines[0]
        for version in (1, 2):
            await side.clock.advance(3.0)
            await engine.pause(PauseMode.ABORT)
            engine.version = version
            await engine.resume()
        (group,) = await side.drive(waiting)
        first = engine.requests[0]
        trajectory = group.episodes[0].trajectories[0]
        prompt = len(first.input_ids)
        wanted = [scripted_token(first.sampling.seed, place) for place in range(11)] + [END_TOKEN]
        got = trajectory.input_ids.tolist()[prompt:]
        expect(got == wanted, f"trained ids {got} are not the sampled ids {wanted}")
        logprobs = [round(float(value), 4) for value in trajectory.logprobs[prompt:]]
        expect(logprobs == [round(-token / 100, 4) for token in wanted], f"log-probs {logprobs} are not the engine's")
        versions = trajectory.versions.tolist()[prompt:]
        expect(versions == [0] * 3 + [1] * 3 + [2] * 6, f"tokens made under versions 0, 1, 2 are stamped {versions}")
        expect(trajectory.loss_mask.tolist() == [False] * prompt + [True] * 12, "the mask is not the generated tokens")
