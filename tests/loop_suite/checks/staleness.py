"""Age: how far behind the policy the tokens of a batch may be, and that waiting loses nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.config.schema import StalenessPolicy
from areal_core.contract.errors import RolloutError

from ..bench import indices, oldest_token

if TYPE_CHECKING:
    from areal_core.contract.data import Episode
    from areal_core.contract.inference import GenerationRequest

    from ..bench import LoopBench

CASES = ((1, 1, 0), (2, 2, 1), (3, 1, 2), (1, 2, 4))
"""Prompts per step, group size, bound."""


LEFT_OUT = frozenset({0, 5, *range(7, 16)})
"""Of every twenty prompts those whose groups are left out: some alone, and whole batches of them."""


def number_of(row: Mapping[str, Any], _generation: object) -> float:
    """Return the number of a row as its reward. Any: the bench's rows."""
    return float(row["number"])


def teaches(episodes: Sequence[Episode]) -> bool:
    """Leave out what `LEFT_OUT` says."""
    return int(episodes[0].trajectories[0].reward) % 20 not in LEFT_OUT


class Lengths:
    """Heavy-tailed lengths that depend on the request alone: one in eight is twenty times longer."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, request: GenerationRequest) -> int:
        draw = random.Random(f"{self._seed}/{request.sampling.seed}")
        return draw.randint(1, 3) * (20 if draw.random() < 0.125 else 1)


@check("loop.staleness.bound", level=Level.LOOP, law=2, spec="index#law-by-law")
async def bound(bench: LoopBench) -> None:
    """The oldest token of every consumed group is within the bound, whatever the latencies."""
    worst = 0
    for seed, (prompts, group, staleness) in enumerate(CASES):
        options = {"prompts": prompts, "group": group, "staleness": staleness, "length": Lengths(seed)}
        async with bench.rollouts(**options, num_replicas=2) as side:  # type: ignore[arg-type]
            for version in range(12):
                for consumed in await side.step():
                    age = version - oldest_token(consumed)
                    worst = max(worst, age)
                    expect(0 <= age <= staleness, f"a group {age} versions old was consumed, the bound is {staleness}")
    expect(worst > 0, "no episode was ever stale: the loop runs in lockstep although the bound allows more")


@check("loop.staleness.drop", level=Level.LOOP, law=2, spec="index#law-by-law")
async def drop(bench: LoopBench) -> None:
    """Under the policy `drop` the bound holds too, and what is dropped is counted and issued again."""
    options = {"prompts": 2, "group": 1, "staleness": 1, "length": Lengths(5), "num_rows": 12}
    async with bench.rollouts(**options, staleness_policy=StalenessPolicy.DROP) as side:  # type: ignore[arg-type]
        seen: list[int] = []
        for version in range(30):
            groups = await side.step()
            for consumed in groups:
                age = version - oldest_token(consumed)
                expect(age <= 1, f"a group {age} versions old was consumed, the bound is 1")
            seen += indices(groups)
        stats = side.executor.stats()
        dropped = len(side.kinds("group_dropped"))
    expect(dropped > 0, "nothing was dropped although one prompt in eight takes twenty times longer")
    expect(stats.dropped == dropped, f"{dropped} groups were dropped, {stats.dropped} counted")
    twice = [index for index, count in Counter(seen).items() if count > 1]
    expect(not twice, f"tasks {twice} were trained on twice")
    done = min(set(range(max(seen) + 1)) - set(seen), default=max(seen) + 1)
    expect(done > len(seen) // 2, f"task {done} was never trained on after {len(seen)} others were: it is starved")


@check("loop.staleness.attempts", level=Level.LOOP, law=2, spec="index#law-by-law")
async def attempts(bench: LoopBench) -> None:
    """A prompt dropped again and again is a new attempt each time, with seeds of its own, until it is in time."""
    asked: list[int | None] = []

    def slow_three_times(request: GenerationRequest) -> int:
        if request.input_ids[0] != 5:
            return 2
        if request.sampling.seed not in asked:
            asked.append(request.sampling.seed)
        return 60 if asked.index(request.sampling.seed) < 3 else 2

    rows = [{"input_ids": [3 + number, 4], "number": number} for number in range(1000)]
    options = {"prompts": 1, "group": 1, "staleness": 1, "length": slow_three_times, "rows": rows}
    async with bench.rollouts(**options, staleness_policy=StalenessPolicy.DROP) as side:  # type: ignore[arg-type]
        trained = [group.task.index for _ in range(160) for group in await side.step()]
        made = [drop["attempt"] for drop in side.kinds("group_dropped") if drop["task_id"] == "train/0/2"]
    expect(made == [0, 1, 2], f"a prompt that was too slow three times was dropped as attempts {made}, not [0, 1, 2]")
    expect(trained.count(2) == 1, f"it was trained on {trained.count(2)} times after that")


@check("loop.staleness.resume", level=Level.FAULTS, law=2, spec="index#law-by-law")
async def resume(bench: LoopBench) -> None:
    """The bound holds from the first batch after a resume, and no more is in flight than before."""
    options = {"prompts": 2, "group": 1, "staleness": 1, "length": Lengths(7)}
    async with bench.rollouts(**options) as side:  # type: ignore[arg-type]
        for _ in range(5):
            await side.step()
        state = side.executor.state()
    async with bench.rollouts(**options, state=state) as side:  # type: ignore[arg-type]
        expect(side.executor.stats().version == 5, f"resumed at version {side.executor.stats().version}, saved at 5")
        await side.clock.settle()
        stats = side.executor.stats()
        outstanding = stats.running + stats.buffered
        expect(outstanding <= 4, f"{outstanding} groups are outstanding after a resume, the bound allows 4")
        for version in range(5, 12):
            for consumed in await side.step():
                age = version - oldest_token(consumed)
                expect(0 <= age <= 1, f"after a resume a group {age} versions old was consumed, the bound is 1")


@check("loop.staleness.one_batch", level=Level.LOOP, law=2, spec="index#law-by-law")
async def one_batch(bench: LoopBench) -> None:
    """One version trains on one batch: a second one is refused until the version moved."""
    async with bench.rollouts(staleness=3) as side:
        await side.drive(side.executor.next_batch())
        try:
            await side.drive(side.executor.next_batch())
        except RolloutError:
            return
    raise Violation("two batches were handed over for one version: the second is older than it says")


@check("loop.staleness.truth", level=Level.LOOP, law=2, spec="index#law-by-law")
async def truth(bench: LoopBench) -> None:
    """The staleness reported with a batch is version minus oldest token, for every episode of it."""
    async with bench.rollouts(prompts=2, group=2, staleness=2, length=Lengths(3)) as side:
        for version in range(8):
            for group in await side.step():
                for episode, told in zip(group.episodes, group.staleness, strict=True):
                    true = version - episode.oldest_version
                    expect(told == true, f"staleness {told} is reported for an episode {true} versions old")


@check("loop.gate.capacity", level=Level.LOOP, law=2, spec="index#law-by-law")
async def capacity(bench: LoopBench) -> None:
    """Never more groups are outstanding than (bound + 1) batches, nor more run at once than allowed."""
    for prompts, group, staleness in CASES:
        async with bench.rollouts(
            prompts=prompts, group=group, staleness=staleness, max_concurrent=3, length=Lengths(1)
        ) as side:
            for _ in range(6):
                await side.step()
                await side.clock.settle()
                stats = side.executor.stats()
                most = (staleness + 1) * prompts
                total = stats.running + stats.buffered
                expect(total <= most, f"{total} groups are outstanding, {most} are allowed")
                expect(stats.running <= 3, f"{stats.running} groups run, max_concurrent is 3")


@check("loop.synchronous.at_zero", level=Level.LOOP, law=3, spec="index#law-by-law")
async def at_zero(bench: LoopBench) -> None:
    """With bound 0 every token of a batch is of its version, in task order, and nothing runs ahead."""
    async with bench.rollouts(prompts=3, group=2, staleness=0, length=Lengths(2), num_replicas=2) as side:
        for version in range(6):
            groups = await side.drive(side.executor.next_batch())
            expect(
                indices(groups) == list(range(3 * version, 3 * version + 3)),
                f"batch {version} holds tasks {indices(groups)}: not the next three in their order",
            )
            versions = {
                int(v) for g in groups for e in g.episodes for t in e.trajectories for v in t.versions[t.loss_mask]
            }
            expect(versions == {version}, f"batch {version} holds tokens of versions {sorted(versions)}")
            await side.clock.settle()
            stats = side.executor.stats()
            expect(stats.running == 0, f"{stats.running} groups run while version {version} is trained on")
            await _advance(side, version + 1)


@check("loop.order.of_tasks", level=Level.LOOP, law=3, spec="index#law-by-law")
async def of_tasks(bench: LoopBench) -> None:
    """A batch is in task order, not in the order its groups happened to finish."""

    def backwards(request: GenerationRequest) -> int:
        return 12 - request.input_ids[0] % 10

    async with bench.rollouts(prompts=4, group=1, staleness=1, length=backwards) as side:
        for _ in range(4):
            batch = indices(await side.step())
            expect(batch == sorted(batch), f"a batch came as {batch}: in the order of completion")


@check("loop.distribution.waits", level=Level.LOOP, law=2, spec="index#law-by-law")
async def waits(bench: LoopBench) -> None:
    """Under `wait` the prompts trained on are those submitted: long ones are neither dropped nor put off."""
    rows, staleness = 16, 2
    async with bench.rollouts(
        prompts=2, group=1, staleness=staleness, num_rows=rows, length=Lengths(11), num_replicas=2
    ) as side:
        trained: list[int] = []
        for step in range(24):
            trained += indices(await side.step())
            late = set(range(max(0, (step + 1 - staleness) * 2))) - set(trained)
            expect(not late, f"tasks {sorted(late)} are still not trained on after batch {step}: others overtook them")
        dropped = side.executor.stats().dropped
    expect(dropped == 0, f"{dropped} groups were dropped under the policy `wait`")
    expect(len(set(trained)) == len(trained), "a task was trained on twice")


@check("loop.distribution.dynamic", level=Level.LOOP, law=2, spec="index#law-by-law")
async def dynamic(bench: LoopBench) -> None:
    """In a dynamic batch who is left out keeps the place: no batch is filled with those who were fast, or accepted."""
    prompts, staleness = 3, 2
    options = {"prompts": prompts, "group": 1, "staleness": staleness, "num_rows": 1000, "dynamic_batch": True}
    async with bench.rollouts(**options, accept=teaches, judge=number_of, length=Lengths(13), num_replicas=2) as side:
        trained: list[int] = []
        for version in range(24):
            groups = await side.step()
            expect(1 <= len(groups) <= prompts, f"batch {version} holds {len(groups)} groups")
            for consumed in groups:
                age = version - oldest_token(consumed)
                expect(0 <= age <= staleness, f"a group {age} versions old was consumed, the bound is {staleness}")
            trained += indices(groups)
            left_out = [int(str(event["task_id"]).rpartition("/")[2]) for event in side.kinds("group_rejected")]
            done = trained + left_out
            expect(len(set(done)) == len(done), "a task was trained on twice, or left out and trained on")
            expect(len(done) % prompts == 0, f"{len(done)} tasks are done after batch {version}: no whole batches")
            late = set(range(len(done) - staleness * prompts)) - set(done)
            expect(not late, f"tasks {sorted(late)} are still not done after batch {version}: others overtook them")
        counted = side.executor.stats().filtered
    wrong = [index for index in trained if index % 20 in LEFT_OUT]
    expect(not wrong, f"tasks {wrong} were trained on although they were left out")
    expect(counted == len(left_out) > 0, f"{len(left_out)} groups were left out, {counted} are counted")


@check("loop.straggler.delays_itself", level=Level.FAULTS, law=9, spec="index#law-by-law")
async def straggler(bench: LoopBench) -> None:
    """One very slow group holds up no batch that can be made without it within the bound."""

    def slow_first(request: GenerationRequest) -> int:
        return 60 if request.input_ids[0] == 3 else 2

    async with bench.rollouts(prompts=1, group=1, staleness=2, length=slow_first, num_rows=20) as side:
        for expected in (1, 2):
            batch = indices(await side.step())
            expect(batch == [expected], f"with task 0 stuck the batch was {batch}, not [{expected}]")
        now = side.clock.now()
        expect(now < 30, f"two batches that need 2 seconds each took {now:g}: they waited for the stuck group")
        batch = indices(await side.step())
        expect(batch == [0], f"at its last chance task 0 was passed over for {batch}")


async def _advance(side: object, version: int) -> None:
    """Move fleet and executor on, as a weight update does."""
    side.version = version  # type: ignore[attr-defined]
    for engine in side.engines:  # type: ignore[attr-defined]
        engine.version = version
    side.executor.set_version(version)  # type: ignore[attr-defined]
