"""Prompts: each is trained on once per epoch, also when the run is killed and resumed."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.benches.rollouts import greedy

from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import DatasetError

from ..bench import indices
from .staleness import Lengths

if TYPE_CHECKING:
    from ..bench import LoopBench

EPOCHS = 5


@check("loop.tasks.once_per_epoch", level=Level.LOOP, law=4, spec="index#law-by-law")
async def once_per_epoch(bench: LoopBench) -> None:
    """Every row is trained on once in every epoch, in a seeded order that differs between epochs."""
    orders: list[list[str]] = []
    async with bench.rollouts(prompts=2, group=1, num_rows=6, shuffle=True, length=lambda _request: 2) as side:
        ids = [str(group.task.task_id) for _ in range(15) for group in await side.step()]
    counts = Counter(ids)
    for epoch in range(EPOCHS):
        wanted = {f"train/{epoch}/{row}" for row in range(6)}
        missing = sorted(name for name in wanted if counts[name] != 1)
        expect(not missing, f"trained not once but {[counts[name] for name in missing]} times: {', '.join(missing)}")
        orders.append([name.rpartition("/")[2] for name in ids if name.startswith(f"train/{epoch}/")])
    expect(len({tuple(order) for order in orders}) == EPOCHS, f"of {EPOCHS} epochs two have the same order: {orders}")


@check("loop.tasks.kill_anywhere", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def kill_anywhere(bench: LoopBench) -> None:
    """Killed after any step and resumed from the last save, every prompt is trained on exactly once."""
    for save_at in (0, 1, 3, 4):
        for lost in (0, 2):
            await _killed(bench, save_at, lost)


async def _killed(bench: LoopBench, save_at: int, lost: int) -> None:
    options = {"prompts": 2, "group": 1, "staleness": 2, "num_rows": 8, "length": Lengths(save_at), "shuffle": True}
    where = f"saved after {save_at} steps, killed {lost} later"
    trained: list[str] = []
    async with bench.rollouts(**options) as side:  # type: ignore[arg-type]
        for _ in range(save_at):
            trained += [str(group.task.task_id) for group in await side.step()]
        state = json.loads(json.dumps(side.executor.state()))
        for _ in range(lost):
            await side.step()
    async with bench.rollouts(**options, state=state) as side:  # type: ignore[arg-type]
        for _ in range(8 - save_at):
            trained += [str(group.task.task_id) for group in await side.step()]
    # A batch may hold a prompt of the next epoch while an old one is still running, up to the bound.
    counts = Counter(trained)
    twice = sorted(name for name, count in counts.items() if count > 1)
    expect(not twice, f"{where}: trained twice: {', '.join(twice)}")
    never = sorted({f"train/0/{row}" for row in range(8)} - set(trained))
    expect(not never, f"{where}: never trained: {', '.join(never)}")


@check("loop.tasks.far_ahead", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def far_ahead(bench: LoopBench) -> None:
    """Over a hundred prompts ahead of one that takes long, each is trained on exactly once, after a resume too."""
    prompts, bound = 40, 4
    options: dict[str, Any] = {
        "prompts": prompts,
        "group": 1,
        "staleness": bound,
        "num_rows": 300,
        "length": lambda request: 60 if request.request_id.startswith("train/0/0#") else 2,
    }
    for save_at in (2, bound):
        trained: list[int] = []
        async with bench.rollouts(**options) as side:
            for _ in range(save_at):
                trained += indices(await side.step())
            state = json.loads(json.dumps(side.executor.state()))
        expect(0 not in trained, "the prompt that takes long was trained first: nobody got ahead of it")
        async with bench.rollouts(**options, state=state) as side:
            for _ in range(bound + 2):
                trained += indices(await side.step())
        wrong = sorted(index for index, count in Counter(trained).items() if count > 1)
        what = f"saved {save_at * prompts} prompts ahead of one that was not trained on"
        expect(not wrong, f"{what}: trained twice: {wrong[:8]}")
        left = sorted(set(range(save_at * prompts + 1)) - set(trained))
        expect(not left, f"{what}: never trained: {left[:8]}")


@check("loop.tasks.state_is_frontier", level=Level.LOOP, law=4, spec="index#law-by-law")
async def state_is_frontier(bench: LoopBench) -> None:
    """A saved state counts as done what was handed over, not what is finished or in flight; it is plain json."""
    async with bench.rollouts(prompts=1, group=1, staleness=3, num_rows=9, length=lambda _request: 2) as side:
        done = [group.task.index for _ in range(2) for group in await side.step()]
        await side.clock.advance(50)
        expect(side.executor.stats().buffered > 0, "nothing is finished ahead, although the bound allows it")
        state = side.executor.state()
    try:
        state = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise Violation(f"the state is not plain json: {error}") from error
    async with bench.rollouts(prompts=1, group=1, staleness=3, num_rows=9, state=state) as side:
        first = sorted([group.task.index for _ in range(4) for group in await side.step()])
    expected = [index for index in range(6) if index not in done][:4]
    expect(first == expected, f"after a resume tasks {first} came, {expected} were not yet trained on")


@check("loop.tasks.other_data", level=Level.LOOP, law=4, spec="index#law-by-law")
async def other_data(bench: LoopBench) -> None:
    """A resume with other rows, another number of rows or another seed is refused."""
    rows = [{"input_ids": [3 + number, 4], "number": number} for number in range(6)]
    async with bench.rollouts(rows=rows, seed=1) as side:
        await side.step()
        state = side.executor.state()
    others = {
        "another seed": {"rows": rows, "seed": 2},
        "fewer rows": {"rows": rows[:5], "seed": 1},
        "other rows": {"rows": [{**row, "number": -1} for row in rows], "seed": 1},
    }
    for what, options in others.items():
        try:
            async with bench.rollouts(**options, state=state):  # type: ignore[arg-type]
                pass
        except DatasetError:
            continue
        raise Violation(f"a resume with {what} was accepted: prompts would be trained on twice, others never")


@check("loop.tasks.rejected_replaced", level=Level.LOOP, law=4, spec="index#law-by-law")
async def rejected_replaced(bench: LoopBench) -> None:
    """A rejected prompt is counted, used up and replaced: batches stay full and it is never trained on."""

    def judge(row: object, _generation: object) -> float | None:
        return None if row["number"] % 3 == 0 else 1.0  # type: ignore[index]

    async with bench.rollouts(prompts=2, group=2, num_rows=30, judge=judge) as side:
        seen: list[int] = []
        for _ in range(6):
            groups = await side.step()
            expect(len(groups) == 2, f"a batch of {len(groups)} groups was handed over, a step takes 2")
            seen += [group.task.index for group in groups]
        rejected = side.executor.stats().rejected
    expect(not [index for index in seen if index % 3 == 0], f"rejected prompts were trained on: {seen}")
    expect(rejected >= 3, f"{rejected} rejections are counted, at least 3 happened")
    expect(len(set(seen)) == len(seen), "a prompt was trained on twice")


@check("loop.groups.whole", level=Level.LOOP, law=5, spec="index#law-by-law")
async def whole_groups(bench: LoopBench) -> None:
    """A batch holds full groups: every member of one prompt, each sampled with a seed of its own."""
    async with bench.rollouts(prompts=2, group=3, length=lambda _request: 6) as side:
        for _ in range(3):
            groups = await side.step()
            expect(len(groups) == 2, f"a batch of {len(groups)} groups was handed over, a step takes 2")
            for group in groups:
                expect(len(group.episodes) == 3, f"a group of {len(group.episodes)} episodes, 3 were asked for")
                expect(
                    {str(e.group_id) for e in group.episodes} == {str(group.task.task_id)}, "members of other groups"
                )
                outputs = {tuple(e.trajectories[0].input_ids.tolist()) for e in group.episodes}
                expect(len(outputs) == 3, "members of one group are copies of each other: they share a seed")


@check("loop.evaluate.beside", level=Level.LOOP, law=4, spec="index#law-by-law")
async def evaluate_beside(bench: LoopBench) -> None:
    """An evaluation uses up no training prompt, is not bounded by the gate, and draws each of its rows apart."""
    async with bench.rollouts(prompts=2, group=1, num_rows=10, length=lambda _request: 3) as side:
        trained = indices(await side.step())
        rows = [{"input_ids": [5, 4], "number": 0}] * 3
        episodes = await side.drive(side.executor.evaluate(rows, greedy()))
        expect(len(episodes) == 3, f"{len(episodes)} of 3 rows were evaluated")
        said = [tuple(episode.trajectories[0].input_ids.tolist()) for episode in episodes]
        expect(len(set(said)) == 3, "rows that are evaluated share a seed: equal ones are answered alike")
        for _ in range(3):
            trained += indices(await side.step())
    expect(sorted(trained) == list(range(8)), f"an evaluation between batches: tasks {sorted(trained)} were trained on")
