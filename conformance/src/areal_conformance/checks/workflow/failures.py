"""Rewards and failures: what is scored is what was generated, and what failed is never worth a number.

Knows: every way a reward, a generation or a row can be bad.
Does not know: what a reward measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle
from typing import TypeVar

from attrs import evolve

from areal_conformance.benches.workflow import (
    ScriptedSession,
    WorkflowBench,
    drifting_tokenizer,
    failing,
    generation,
    judging,
    paying,
    scripted,
)
from areal_conformance.benches.workflow_tokens import told_right, traced
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import (
    ArealError,
    DatasetError,
    GenerationFailed,
    NoReplica,
    PromptTooLong,
    RewardFailed,
    WorkerDied,
)
from areal_core.contract.inference import Generation
from areal_core.contract.workflow import RewardResult, RewardStatus

E = TypeVar("E", bound=Exception)
_RUN = "workflow#areal_core.contract.workflow.RolloutWorkflow.arun_episode"
_RESULT = "workflow#areal_core.contract.workflow.RewardResult"
_INPUT = "workflow#areal_core.contract.workflow.RewardInput"


@check("workflow.reward.recorded", level=Level.SINGLE, law=5, spec=_RESULT)
async def recorded(bench: WorkflowBench) -> None:
    """The reward is recorded as it was given: small, large, negative, and zero too."""
    tolerance = bench.tolerance()
    for value in (0.625, 0.0, -3.25, 1.0, 1e-3, 250.0, 1):
        session = bench.session(judge=paying(value))
        episode = await bench.episode(session)
        bench.scored(session)
        seen = [trajectory.reward for trajectory in episode.trajectories]
        expect(bench.worth(episode, value, tolerance), f"a reward of {value} is recorded as {seen}")
        expect(all(type(one) is float for one in seen), f"rewards are of type {[type(one).__name__ for one in seen]}")


def _ended_by_text(turn: int) -> Generation:
    return evolve(generation(1 + turn, stop=StopReason.LENGTH), stop_reason=StopReason.STOP)


def _ended_otherwise(turn: int) -> Generation:
    return generation(1 + turn, stop=StopReason.LENGTH if turn else StopReason.STOP)


@check("workflow.reward.asked_with", level=Level.SINGLE, law=1, spec=_INPUT)
async def asked_with(bench: WorkflowBench) -> None:
    """A reward is asked with the ids, text, stop reason and row of what was generated, special tokens left out.

    So it is of an output that a text ended, whose last token is part of what was said, and of one that ended otherwise
    than the output before it.
    """
    tokenizer = drifting_tokenizer()
    ended = (scripted(1, stop=StopReason.STOP), scripted(1, stop=StopReason.LENGTH), _ended_by_text, _ended_otherwise)
    for row, script in zip(cycle(bench.rows), ended, strict=False):
        session = bench.session(script)
        await bench.run(session, row)
        given = bench.scored(session)
        told_right(session, tokenizer, row, bench.adds)
        if isinstance(row.get("prompt"), str) and not bench.adds:
            expect(row["prompt"] in given.prompt, f"the prompt {row['prompt']!r} is told as {given.prompt!r}")


@check("workflow.reward.failed", level=Level.SINGLE, law=5, spec=_RESULT)
async def failed(bench: WorkflowBench) -> None:
    """A reward that timed out, raised, crashed or was no number fails the episode with a typed error that tells it."""
    for status in (RewardStatus.TIMEOUT, RewardStatus.RAISED, RewardStatus.CRASHED, RewardStatus.INVALID):
        detail = f"the words of a reward that ended with {status}"
        result = RewardResult(value=None, status=status, detail=detail, components={"part": 1.0})
        session = bench.session(judge=judging(result))
        text = str(await _failure(bench, ArealError, session, f"a reward that ended with {status!r}"))
        expect(session.task_id in text or detail in text, f"the error tells neither task nor reason: {text}")


@check("workflow.reward.failed_is_reward_failed", level=Level.SINGLE, law=5, spec=_RESULT)
async def failed_is_reward_failed(bench: WorkflowBench) -> None:
    """The error of a failed reward is RewardFailed, which nobody retries and nobody takes for another failure."""
    result = RewardResult(value=None, status=RewardStatus.RAISED, detail="division by zero")
    await _failure(bench, RewardFailed, bench.session(judge=judging(result)), "a reward that raised")


@check("workflow.reward.not_finite", level=Level.SINGLE, law=5, spec=_RESULT)
async def not_finite(bench: WorkflowBench) -> None:
    """A reward that is called ok and is no finite number fails the episode; it is never recorded."""
    for value in (math.nan, math.inf, -math.inf):
        await _failure(bench, Exception, bench.session(judge=paying(value)), f"a reward of {value}")
    result = RewardResult(value=None, status=RewardStatus.OK)
    await _failure(bench, Exception, bench.session(judge=judging(result)), "a reward that is ok and has no value")


@check("workflow.reward.pool_broken", level=Level.SINGLE, law=5, spec=_RUN)
async def pool_broken(bench: WorkflowBench) -> None:
    """An error the session raises while scoring passes as it is."""
    sent = WorkerDied("the reward pool is gone", why="a test", fix="none")
    error = await _failure(bench, WorkerDied, bench.session(judge=judging(sent)), "a session that raises while scoring")
    expect(type(error) is WorkerDied, f"WorkerDied became {type(error).__name__}: {error}")


@check("workflow.failure.generation", level=Level.SINGLE, law=5, spec=_RUN)
async def failed_generation(bench: WorkflowBench) -> None:
    """A generation that fails fails the episode with its own error; nothing is scored, and nobody asks again."""
    for sent in (
        GenerationFailed("the engine lost it", why="w", fix="f"),
        PromptTooLong("too long", why="9 > 8"),
        NoReplica("nobody serves"),
        ZeroDivisionError("an engine's own"),
    ):
        session = bench.session(failing(sent))
        error = await bench.failure(type(sent), session, f"a generation that raised {type(sent).__name__}")
        same = (type(error), str(error)) == (type(sent), str(sent))
        expect(same, f"{sent!r} of a generation became {error!r}")
        expect(not session.scored, "a generation that failed was scored")
        again = len(session.asked) - 1
        expect(not again, f"after a generation failed the policy was asked {again} times")


@check("workflow.turns.failure", level=Level.SINGLE, law=5, spec=_RUN, requires=("multi_turn",))
async def failed_turn(bench: WorkflowBench) -> None:
    """A later turn that fails fails the whole episode with its own error; the turns before are not passed off as it."""
    sent = GenerationFailed("the engine lost it", why="w", fix="f")
    before: list[int] = []

    def script(turn: int) -> Generation | GenerationFailed:
        before.append(len(session.scored))
        return sent if turn else generation(turn)

    session = bench.session(script)
    error = await bench.failure(GenerationFailed, session, "a second turn that failed")
    expect(type(error) is GenerationFailed, f"GenerationFailed of a turn became {type(error).__name__}: {error}")
    expect(len(session.scored) == before[-1], "an episode was scored after its second turn had failed")


@check("workflow.failure.alone", level=Level.SINGLE, law=5, spec=_RUN)
async def failure_alone(bench: WorkflowBench) -> None:
    """After an episode failed the next one is made as if nothing had been."""
    for script, judge in (
        (failing(GenerationFailed("lost")), None),
        (None, judging(RewardResult(value=None, status=RewardStatus.TIMEOUT))),
    ):
        session = bench.session(script, judge)
        with suppress(ArealError):
            await bench.run(session)
        session = bench.session()
        episode = await bench.episode(session)
        traced(episode, session)
        expect(bench.worth(episode, 0.625), "the episode after a failed one has another reward")


@check("workflow.rows.unfit", level=Level.SINGLE, law=5, spec=_RUN)
async def unfit_rows(bench: WorkflowBench) -> None:
    """A row without what the workflow needs, or with something else there, is a DatasetError, and nothing is asked."""
    rows: list[tuple[str, Mapping[str, object]]] = [("an empty row", {})]
    for row in bench.rows:
        is_text = isinstance(next(iter(row.values())), str)
        for what, wrong in (("None", None), ("7", 7), ("a list of texts", ["x", "y"]), ("text", "x")):
            if what != "text" or not is_text:
                rows.append((f"a row whose {', '.join(row)} are {what}", dict.fromkeys(row, wrong)))
        lists = {name: [*value, None] for name, value in row.items() if isinstance(value, list | tuple)}
        if lists:
            rows.append((f"a row whose {', '.join(lists)} end with None", {**row, **lists}))
    for what, row in rows:
        session = bench.session()
        error = await bench.failure(DatasetError, session, what, row)
        expect(session.begun == 0, f"{what}: the session was asked {session.begun} times")
        expect(bool(error.why or error.fix), f"{what} is refused without a reason: {error}")


@check("workflow.rejection.on_purpose", level=Level.SINGLE, law=5, spec=_RUN)
async def on_purpose(bench: WorkflowBench) -> None:
    """No row is rejected for a low reward or a short output; every row of the adapter makes an episode."""
    for row in bench.rows:
        for value, length in ((0.0, 6), (-5.0, 6), (0.0, 1), (1.0, 1)):
            session = bench.session(scripted(length=length), paying(value))
            await bench.episode(session, row)


async def _failure(bench: WorkflowBench, kind: type[E], session: ScriptedSession, what: str) -> E:
    try:
        return await bench.failure(kind, session, what)
    finally:
        if not session.scored:
            raise bench.unscored()
