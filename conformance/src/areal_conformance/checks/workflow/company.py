"""One instance, many episodes: none knows of another, each can be cancelled, and nothing is left of it.

Knows: interleavings, cancellation, what must not change.
Does not know: tokens; `tokens` looks at them.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from areal_conformance.benches.workflow import (
    ScriptedSession,
    WorkflowBench,
    generation,
    paying,
    read_only,
    scripted,
)
from areal_conformance.benches.workflow_tokens import traced
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.data import Episode
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.workflow import RolloutWorkflow

_RUN = "workflow#areal_core.contract.workflow.RolloutWorkflow.arun_episode"
_WORKFLOW = "workflow#areal_core.contract.workflow.RolloutWorkflow"
_EPISODE = "data#areal_core.contract.data.Episode"
_MANY = 12


@check("workflow.episode.names", level=Level.SINGLE, law=1, spec=_EPISODE)
async def names(bench: WorkflowBench) -> None:
    """An episode has its session's task and group; its metrics are numbers by name."""
    expect(isinstance(bench.workflow, RolloutWorkflow), f"{type(bench.workflow).__name__} is no RolloutWorkflow")
    for number in (3, 4):
        task, group = TaskId(f"train/{number}/9"), GroupId(f"group {number}")
        judge = paying(0.5, components={"format": 1.0, "answer": -0.5})
        episode = await bench.episode(bench.session(judge=judge, task_id=task, group_id=group))
        seen = (episode.task_id, episode.group_id)
        expect(seen == (task, group), f"the episode of {(task, group)} says it is of {seen}")
        expect(isinstance(episode.metrics, Mapping), f"metrics are a {type(episode.metrics).__name__}")
        odd = {k: v for k, v in episode.metrics.items() if not isinstance(k, str) or type(v) not in (int, float)}
        expect(not odd, f"metrics that are no numbers by name: {odd}")


@check("workflow.company.at_once", level=Level.SINGLE, law=1, spec=_WORKFLOW)
async def at_once(bench: WorkflowBench) -> None:
    """Many episodes are at work at once in one instance, and each holds its own prompt, tokens, reward and names."""
    gates = [asyncio.Event() for _ in range(_MANY)]
    arrived: set[int] = set()
    sessions, rows = [], bench.rows
    for number in range(_MANY):
        session = bench.session(
            scripted(7 * number, length=4 + number % 3),
            paying(number / 16, components={"mine": float(number)}),
            at_generate=partial(_at, arrived, number, gates[number]),
            task_id=TaskId(f"train/0/{number}"),
            group_id=GroupId(f"group {number // 2}"),
        )
        sessions.append(session)
    work = [
        asyncio.create_task(bench.episode(session, rows[number % len(rows)])) for number, session in enumerate(sessions)
    ]
    try:
        await _until(bench, lambda: len(arrived) == _MANY, f"{_MANY} episodes at once: not all have asked the policy")
        order = list(range(_MANY))
        random.Random(3).shuffle(order)
        for number in order:
            gates[number].set()
            await asyncio.sleep(0)
        episodes = await bench.soon(asyncio.gather(*work), "episodes whose gates are open")
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)
    alone = [bench.session() for _ in rows]
    for session, row in zip(alone, rows, strict=True):
        await bench.episode(session, row)
    for number, (episode, session) in enumerate(zip(episodes, sessions, strict=True)):
        prompt, wanted = session.asked[0].input_ids, alone[number % len(rows)].asked[0].input_ids
        expect(prompt == wanted, f"in company episode {number} was asked with {prompt}, alone with {wanted}")
        traced(episode, session)
        seen = (episode.task_id, episode.group_id)
        mine = (session.task_id, session.group_id)
        expect(seen == mine, f"episode {mine} says it is {seen}")
        rewards = [trajectory.reward for trajectory in episode.trajectories]
        own = not session.scored or bench.worth(episode, number / 16)
        expect(own, f"episode {number} got the reward {number / 16}; its trajectories have {rewards}")
        strange = episode.metrics.get("mine", number) != number
        expect(not strange, f"episode {number} has the metrics of episode {episode.metrics.get('mine')}")


@check("workflow.company.repeatable", level=Level.SINGLE, law=3, spec=_RUN)
async def repeatable(bench: WorkflowBench) -> None:
    """The same row and session give the same episode: the third time, in another instance, and after others."""
    rows = bench.rows
    first = _plain(await bench.episode(bench.session(), rows[0]))
    for row in (*rows[1:], *rows, rows[0]):
        again = _plain(await bench.episode(bench.session(), row))
        if row == rows[0]:
            expect(again == first, f"the same row gives {again}, before it gave {first}")
    session = bench.session()
    made = await bench.soon(bench.fresh().arun_episode(session, rows[0]), "an episode of another instance")
    again = _plain(made if isinstance(made, Episode) else await bench.episode(bench.session(), rows[0]))
    expect(again == first, f"another instance gives {again}, the first gave {first}")


@check("workflow.company.row_unchanged", level=Level.SINGLE, law=4, spec=_RUN)
async def row_unchanged(bench: WorkflowBench) -> None:
    """The row is not changed, at its top or within: the members of a group and the next epoch read it too."""
    for row in bench.rows:
        nested = {**row, "extra": {"list": [1, 2], "deep": {"a": [3]}}}
        before = copy.deepcopy(nested)
        await bench.episode(bench.session(), nested)
        expect(nested == before, f"the row {before} became {nested}")
        await bench.episode(bench.session(), read_only(row))


@check("workflow.cancel.prompt", level=Level.SINGLE, law=9, spec=_RUN)
async def cancel_prompt(bench: WorkflowBench) -> None:
    """A cancelled episode ends with CancelledError wherever it waits; its requests are cancelled, and none follows."""
    for turn in range(4):
        if not await _cancelled(bench, where=f"generation {turn}", turn=turn):
            break
    await _cancelled(bench, where="the reward", turn=None)
    session = bench.session()
    await bench.episode(session)


@check("workflow.cancel.others", level=Level.SINGLE, law=9, spec=_RUN)
async def cancel_others(bench: WorkflowBench) -> None:
    """Cancelling one episode leaves the others of the instance at work."""
    gate, arrived = asyncio.Event(), set[int]()
    sessions = [bench.session(at_generate=partial(_at, arrived, number, gate)) for number in range(3)]
    work = [asyncio.create_task(bench.episode(session)) for session in sessions]
    try:
        await _until(bench, lambda: len(arrived) == 3, "3 episodes at once: not all have asked the policy")
        work[1].cancel()
        await bench.soon(asyncio.wait((work[1],)), "a cancelled episode")
        gate.set()
        for number in (0, 2):
            traced(await bench.soon(work[number], "an episode beside a cancelled one"), sessions[number])
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)


@check("workflow.tasks.none_left", level=Level.SINGLE, law=10, spec=_RUN)
async def none_left(bench: WorkflowBench) -> None:
    """An episode leaves no task behind: not when it is made, not when it fails, and nothing is asked after it."""
    async with bench.no_task_left():
        session = bench.session()
        await bench.episode(session)
        begun = session.begun
    expect(session.begun == begun, f"{session.begun - begun} calls of the session came after the episode")
    async with bench.no_task_left():
        failing = bench.session(lambda _: ZeroDivisionError("an engine's own"))
        await bench.failure(Exception, failing, "a generation that raised")
    beside = await _asked_at_once(bench)
    if len(beside) > 1:
        async with bench.no_task_left():
            await _one_of_several_fails(bench, beside)


async def _asked_at_once(bench: WorkflowBench) -> list[int]:
    """Return the turns of an episode that are on their way together, the most of them there are."""
    now, most = list[int](), list[int]()

    async def watched(turn: int) -> None:
        nonlocal most
        now.append(turn)
        most = max(most, [*now], key=len)
        for _ in range(8):
            await asyncio.sleep(0)
        now.remove(turn)

    await bench.episode(bench.session(at_generate=watched))
    return most


async def _one_of_several_fails(bench: WorkflowBench, beside: Sequence[int]) -> None:
    """Let the last of several requests fail while the others are on their way, who would never come back."""
    arrived = set[int]()
    all_there = asyncio.Event()

    async def held(turn: int) -> None:
        arrived.add(turn)
        if arrived.issuperset(beside):
            all_there.set()
        if turn == beside[-1]:
            await all_there.wait()
        elif turn in beside:
            await asyncio.Event().wait()

    sent = GenerationFailed("the engine lost it")
    session = bench.session(lambda turn: sent if turn == beside[-1] else generation(turn), at_generate=held)
    await bench.failure(GenerationFailed, session, f"one of {len(beside)} requests at once that failed")


@check("workflow.loop.not_blocked", level=Level.SINGLE, law=9, spec=_WORKFLOW)
async def not_blocked(bench: WorkflowBench) -> None:
    """An episode never sleeps in the controller's event loop: every other episode would stand still with it."""
    with _no_sleep():
        session = bench.session()
        await bench.episode(session)


async def _cancelled(bench: WorkflowBench, *, where: str, turn: int | None) -> bool:
    """Cancel an episode at one place; tell whether it ever came there."""
    never, there = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        there.set()
        await never.wait()

    async def at_generate(now: int) -> None:
        await (stay() if now == turn else asyncio.sleep(0))

    async def at_reward() -> None:
        await (stay() if turn is None else asyncio.sleep(0))

    session = bench.session(at_generate=at_generate, at_reward=at_reward)
    async with bench.no_task_left():
        task = asyncio.create_task(_run(bench, session))
        waiting = asyncio.create_task(there.wait())
        await bench.soon(asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED), f"coming to {where}")
        waiting.cancel()
        await asyncio.wait((waiting,))
        if task.done():
            if turn == 0:
                raise Violation(f"an episode ended before it asked the policy: {task}")
            if turn is None and bench.target.adapter.scoring.asks:
                raise bench.unscored()
            return False
        begun = session.begun
        task.cancel()
        await bench.soon(asyncio.wait((task,)), f"an episode cancelled at {where}")
        expect(task.cancelled(), f"an episode cancelled at {where} ended with {_end(task)}, not with CancelledError")
        for _ in range(10):
            await asyncio.sleep(0)
        expect(session.cancelled, f"cancelled at {where}, its request was not cancelled")
        expect(session.begun == begun, f"cancelled at {where}, it went on to call the session")
    return True


async def _run(bench: WorkflowBench, session: ScriptedSession) -> Any:  # Any: what the workflow gives
    return await bench.workflow.arun_episode(session, bench.rows[0])


async def _at(arrived: set[int], number: int, gate: asyncio.Event, _turn: int) -> None:
    arrived.add(number)
    await gate.wait()


async def _until(bench: WorkflowBench, condition: Callable[[], bool], what: str) -> None:
    deadline = bench.deadline(4.0)
    while not condition():
        if not deadline.left():
            raise deadline.late(what)
        await asyncio.sleep(0.001)


def _end(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "CancelledError"
    error = task.exception()
    return f"a result ({task.result()!r:.80})" if error is None else f"{type(error).__name__}: {error}"


def _plain(episode: Episode) -> object:
    columns = ("input_ids", "loss_mask", "logprobs", "versions")
    trajectories = [
        (*(getattr(t, name).tolist() for name in columns), t.reward, str(t.stop_reason)) for t in episode.trajectories
    ]
    return trajectories, dict(episode.metrics)


@contextmanager
def _no_sleep() -> Iterator[None]:
    """Raise where `time.sleep` is called in this thread."""
    here, sleep = threading.get_ident(), time.sleep

    def guarded(seconds: Any, /) -> None:  # Any: whatever counts as a number there
        if threading.get_ident() == here:
            raise Violation(f"time.sleep({seconds}) in the event loop")
        sleep(seconds)

    time.sleep = guarded
    try:
        yield
    finally:
        time.sleep = sleep
