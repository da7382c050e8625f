"""Nothing of an episode is made up again or left out: its own row, its ids, what the reward is told and what it told.

Knows: ids that another encoding of the same text would not give, rows that differ in one place or hold more than text.
Does not know: what a reward measures; `failures` looks at bad ones.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Mapping
from itertools import product
from typing import Any

from areal_conformance.adapter import Tolerance
from areal_conformance.benches.workflow import Judge, WorkflowBench, drifting_tokenizer, paying, scripted
from areal_conformance.benches.workflow_tokens import told_right, traced
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.data import Episode, StopReason
from areal_core.contract.workflow import RewardInput, RewardResult

_RUN = "workflow#areal_core.contract.workflow.RolloutWorkflow.arun_episode"
_RESULT = "workflow#areal_core.contract.workflow.RewardResult"
_INPUT = "workflow#areal_core.contract.workflow.RewardInput"
_TRAJECTORY = "data#areal_core.contract.data.Trajectory"
_AS_MANY = ((3, 32, 9, 8), (3, 32), (7, 3, 32, 3, 32), (3, 32, 10, 11, 12, 1))
"""`a ba`: the text is encoded as `ab a`, two tokens too."""
_FEWER = ((3, 4, 9, 8), (4, 3, 1), (3, 4, 3, 4, 6, 1))


@check("workflow.tokens.as_sampled", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def as_sampled(bench: WorkflowBench) -> None:
    """Sampled ids are kept where their text would be encoded as others: as many, fewer, or with no end token."""
    tokenizer = drifting_tokenizer()
    for ids in (*_AS_MANY, *_FEWER):
        whole = [i for i in ids if i != 1]
        anew = tokenizer.encode(tokenizer.decode(whole), add_special_tokens=False)
        if anew == whole or (len(anew) == len(whole)) != (ids in _AS_MANY):
            raise Inconclusive(f"the suite's tokenizer encodes the text of {whole} as {anew}")
        stop = StopReason.STOP if ids[-1] == 1 else StopReason.LENGTH
        session = bench.session(scripted(length=len(ids), stop=stop, output_ids=ids))
        made = await bench.ended_by(session, stop)
        if made is not None:
            expect(bool(traced(made, session)), f"the episode trains on nothing of {ids}")


@check("workflow.reward.components", level=Level.SINGLE, law=5, spec=_RESULT)
async def components(bench: WorkflowBench) -> None:
    """The parts of a reward are the episode's metrics, under their names: of this episode, and not of another."""
    parts = [{"format": 1.0, "answer": -0.5}, {}, {"format": 0.25}, {"length": 3.0, "zero": 0.0}]
    sessions = [bench.session(judge=paying(0.5, components=given)) for given in parts]
    rows = bench.rows
    made = await asyncio.gather(*(bench.run(s, rows[n % len(rows)]) for n, s in enumerate(sessions)))
    names = {name for given in parts for name in given}
    for session, given, one in zip(sessions, parts, made, strict=True):
        bench.scored(session)
        if not isinstance(one, Episode):
            bench.notes.append("returns bare trajectories, which have no metrics")
            return
        metrics = dict(one.metrics)
        lost = sorted(given.keys() - metrics.keys())
        expect(not lost, f"the reward told of {given}; of the episode's metrics {metrics} {lost} are missing")
        if len(session.scored) == 1:
            other = {name: metrics[name] for name in given if metrics[name] != given[name]}
            expect(not other, f"the reward told of {given}, the episode of {other}")
        strange = sorted((names & metrics.keys()) - given.keys())
        expect(not strange, f"the reward told of {given}; the metrics {strange} are another episode's")


@check("workflow.reward.some_components", level=Level.SINGLE, law=5, spec="workflow#tasks-of-its-own")
async def some_components(bench: WorkflowBench) -> None:
    """A part that some of an episode's rewards told and others did not is a metric made of those that told it."""
    for row, first in product(bench.rows, (0, 1)):
        told: dict[str, list[float]] = {}
        session = bench.session(judge=_telling_in_turns(first, told))
        made = await bench.run(session, row)
        bench.scored(session)
        if not isinstance(made, Episode):
            bench.notes.append("returns bare trajectories, which have no metrics")
            return
        for name in told.keys() & made.metrics.keys():
            seen, all_told = made.metrics[name], told[name]
            within = min(all_told) - 1e-9 <= seen <= max(all_told) + 1e-9
            expect(
                within, f"rewards told of {name!r} {all_told}; the episode's metric is {seen}, which none of them is"
            )


@check("workflow.reward.any_end", level=Level.SINGLE, law=5, spec=_RESULT)
async def any_end(bench: WorkflowBench) -> None:
    """A reward is recorded as given however the output ended and however long it was: no workflow weighs it."""
    for stop, length, value in product((StopReason.STOP, StopReason.LENGTH), (1, 2, 19, 200), (0.625, -2.0)):
        await _recorded(bench, stop, length, value, Tolerance())


@check("workflow.reward.told_all", level=Level.SINGLE, law=5, spec=_INPUT)
async def told_all(bench: WorkflowBench) -> None:
    """A reward sees the whole row, columns of any type, and the whole output: ids with their end, text without."""
    tokenizer = drifting_tokenizer()
    more: dict[str, Any] = {"number": 7, "tests": [1, [2, 3]], "facts": {"a": None, "b": 0.5}, "flag": False, "": "x"}
    for row in bench.rows:
        for length, stop in ((6, StopReason.STOP), (5, StopReason.LENGTH), (2, StopReason.STOP)):
            given = {**row, **more}
            session = bench.session(scripted(3, length=length, stop=stop))
            await bench.run(session, given)
            told_right(session, tokenizer, given, bench.adds)
            bench.scored(session)


@check("workflow.cancel.leaves_nothing", level=Level.SINGLE, law=10, spec=_RUN)
async def cancel_leaves_nothing(bench: WorkflowBench) -> None:
    """A cancelled episode takes its request with it: generation or reward, none is left running for nobody."""
    for where in ("generation", "reward"):
        there, never = asyncio.Event(), asyncio.Event()

        async def stay(here: asyncio.Event = there, forever: asyncio.Event = never) -> None:
            here.set()
            await forever.wait()

        async def at_generate(_turn: int, wait: Any = stay) -> None:  # Any: a coroutine function
            await wait()

        session = bench.session(**({"at_generate": at_generate} if where == "generation" else {"at_reward": stay}))
        task = asyncio.ensure_future(bench.workflow.arun_episode(session, bench.rows[0]))
        waiting = asyncio.ensure_future(there.wait())
        await bench.soon(asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED), f"coming to the {where}")
        waiting.cancel()
        if task.done():
            bench.notes.append(f"the episode never waits for a {where}")
            continue
        begun = session.begun
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        left = session.cancelled == 0
        ended = task.done()
        task.cancel()
        never.set()
        await bench.soon(asyncio.wait((task,)), f"an episode cancelled twice at the {where}")
        expect(not left, f"an episode was cancelled at the {where}, and its request was left running")
        expect(ended and task.cancelled(), f"an episode cancelled at the {where} went on")
        expect(session.begun == begun, f"cancelled at the {where}, it made {session.begun - begun} calls more")


_SESSION = "workflow#areal_core.contract.workflow.Session"
_LONG = "whatisthelongestwordinthisverylongsentencethatstartslikeeveryotherone-"
_EXTRAS: Mapping[str, Any] = {
    "extra_number": 7,
    "extra_zero": 0,
    "extra_fraction": 0.1,
    "extra_flag": False,
    "extra_none": None,
    "extra_text": "",
    "extra_list": [1, 2.5, "three", None, [4, [5]]],
    "extra_nested": {"tests": [{"input": "1 2", "output": 3}], "empty": {}, "number": {"of": {"levels": 3}}},
    "extra_tuple": (1, "two"),
    "extra_large": 2**70,
}


@check("workflow.rows.own_prompt", level=Level.SINGLE, law=1, spec=_SESSION)
async def own_prompt(bench: WorkflowBench) -> None:
    """Rows whose prompts are alike but for one place are each asked with their own, as if each were the only one."""
    row = next((row for row in bench.rows if isinstance(row.get("prompt"), str)), None)
    if row is None:
        raise Inconclusive("no row of the adapter has a text 'prompt'")
    texts = [_LONG + end for end in ("", "a>", "b>", "aa>", ">a", "c" * 40)]
    texts += [start + _LONG for start in ("a", "b", "q-")]
    texts += [f"{_LONG}{middle}{_LONG}" for middle in ("x", "y", "xy", "yx")]
    texts += [_LONG[:cut] for cut in (8, 16, 32, 40, 64)]
    asked = [await _prompt(bench, {**row, "prompt": text}) for text in texts]
    for text, seen in zip(texts, asked, strict=True):
        alone = await _prompt(bench, {**row, "prompt": text}, fresh=True)
        expect(seen == alone, f"after other rows the prompt {text!r} is asked with {seen}, alone with {alone}")
    expect(len(set(asked)) == len(texts), f"{len(texts)} prompts were asked with {len(set(asked))} different ones")
    many = [f"{_LONG}{chr(97 + number % 26)}{chr(97 + number // 26)}>" for number in range(300)]
    seen_of_many = [await _prompt(bench, {**row, "prompt": text}) for text in many]
    expect(len(set(seen_of_many)) == 300, f"300 prompts were asked with {len(set(seen_of_many))} different ones")
    for text, first in ((texts[1], asked[1]), (many[0], seen_of_many[0]), (many[-1], seen_of_many[-1])):
        again = await _prompt(bench, {**row, "prompt": text})
        expect(again == first, f"after 300 rows the prompt {text!r} is asked with {again}, before with {first}")


@check("workflow.rows.measured", level=Level.SINGLE, law=1, spec=_RUN)
async def measured(bench: WorkflowBench) -> None:
    """The tokens that a workflow says its first request has, by `prompt_ids`, are those it asks with, for every row.

    Rows are measured by them before a run, to leave out what has no room.
    """
    says: Any = bench.workflow  # Any: a method that not every workflow has
    if not hasattr(says, "prompt_ids"):
        bench.notes.append("it has no prompt_ids: rows are not measured before a run")
        return
    for row in bench.rows:
        asked, told = await _prompt(bench, row), says.prompt_ids(drifting_tokenizer(), row, "train/0/0")
        expect(tuple(told) == asked, f"of the row {row} the prompt is told as {tuple(told)}, and asked with as {asked}")


@check("workflow.rows.no_limit", level=Level.SINGLE, law=1, spec=_RUN)
async def no_limit(bench: WorkflowBench) -> None:
    """A prompt is whole, whatever length the files of its tokenizer give: what has room is the engine's to say."""
    tokenizer = copy.deepcopy(drifting_tokenizer())
    tokenizer.model_max_length = 4
    for row in bench.rows:
        session = bench.session()
        session.tokenizer = tokenizer
        await bench.episode(session, row)
        asked, whole = session.asked[0].input_ids, await _prompt(bench, row)
        expect(asked == whole, f"with a `model_max_length` of 4 the row {row} is asked with {asked}, not with {whole}")


@check("workflow.rows.whole", level=Level.SINGLE, law=5, spec=_INPUT)
async def whole_row(bench: WorkflowBench) -> None:
    """The reward is given the whole row, numbers, lists, nested columns and None too, each of its own type."""
    for row in bench.rows:
        for given in ({**row, **_EXTRAS}, {**_EXTRAS, **row}, {**row, "extra_only": {"a": [1]}}):
            session = bench.session()
            await bench.episode(session, copy.deepcopy(given))
            seen = bench.scored(session).row
            missing = [name for name in given if name not in seen]
            expect(not missing, f"the reward is given a row without the columns {missing}")
            more = [name for name in seen if name not in given and name not in bench.adds]
            expect(not more, f"the reward is given a row with columns it does not have: {more}")
            for name, value in given.items():
                told = f"column {name!r} is {value!r} of the row, the reward is given {seen[name]!r}"
                expect(_same(value, seen[name]), told)


@check("workflow.rows.worth", level=Level.SINGLE, law=5, spec=_RESULT)
async def worth(bench: WorkflowBench) -> None:
    """An output that was aborted, or is as long as its budget, is worth what the reward said, or no episode at all."""
    for stop, length, value in product(StopReason, (1, 2, 6, 23), (0.625, -3.25, 250.0)):
        await _recorded(bench, stop, length, value, bench.tolerance())


async def _recorded(bench: WorkflowBench, stop: StopReason, length: int, value: float, tolerance: Tolerance) -> None:
    """Expect a reward to be recorded as it was given, or no episode to be made."""
    session = bench.session(scripted(length=length, stop=stop), paying(value))
    made = await bench.ended_by(session, stop)
    if made is None:
        return
    bench.scored(session)
    seen = [trajectory.reward for trajectory in made.trajectories]
    close = bench.worth(made, value, tolerance)
    expect(close, f"a reward of {value} for {length} tokens that ended with {stop!s} is recorded as {seen}")


def _telling_in_turns(first: int, told: dict[str, list[float]]) -> Judge:
    """Return a judge that tells other parts each time; what it told of each is added to `told`."""
    numbers = itertools.count()

    def judge(_: RewardInput) -> RewardResult:
        number = next(numbers)
        parts = {"odd": 2.0 + number} if number % 2 == first else {"even": -3.0 - number, "nothing": 0.0}
        for name, value in parts.items():
            told.setdefault(name, []).append(value)
        return RewardResult(value=0.625, components=parts)

    return judge


async def _prompt(bench: WorkflowBench, row: Mapping[str, Any], *, fresh: bool = False) -> tuple[int, ...]:
    """Return what the policy is asked with first. Any: the workflow decides."""
    session = bench.session()
    if fresh:
        await bench.soon(bench.fresh().arun_episode(session, row), "an episode of another instance")
    else:
        await bench.episode(session, row)
    return session.asked[0].input_ids


def _same(one: Any, other: Any) -> bool:  # Any: what a row holds
    """Tell whether two values are equal, types included: True is not 1."""
    if isinstance(one, Mapping):
        if not isinstance(other, Mapping) or set(one) != set(other):
            return False
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        if not isinstance(other, type(one)) or len(one) != len(other):
            return False
        return all(_same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)
