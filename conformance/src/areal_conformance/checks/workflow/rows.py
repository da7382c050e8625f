"""Rows and what they are worth: each row its own prompt, given whole to the reward, whose value is recorded as it is.

Knows: rows that differ in one place only, rows with more than text in them, ends of every kind.
Does not know: what a reward measures; `failures` looks at bad ones.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from areal_conformance.benches.workflow import WorkflowBench, paying, scripted
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.data import Episode, StopReason

_SESSION = "workflow#areal_core.contract.workflow.Session"
_INPUT = "workflow#areal_core.contract.workflow.RewardInput"
_RESULT = "workflow#areal_core.contract.workflow.RewardResult"
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
            more = [name for name in seen if name not in given]
            expect(not more, f"the reward is given a row with columns it does not have: {more}")
            for name, value in given.items():
                told = f"column {name!r} is {value!r} of the row, the reward is given {seen[name]!r}"
                expect(_same(value, seen[name]), told)


@check("workflow.rows.worth", level=Level.SINGLE, law=5, spec=_RESULT)
async def worth(bench: WorkflowBench) -> None:
    """An output that was aborted, or is as long as its budget, is worth what the reward said, or no episode at all."""
    tolerance = bench.tolerance()
    for stop in StopReason:
        for length in (1, 2, 6, 23):
            for value in (0.625, -3.25, 250.0):
                session = bench.session(scripted(length=length, stop=stop), paying(value))
                try:
                    made = await bench.run(session)
                except Violation:
                    raise
                except Exception as error:
                    expect(stop is StopReason.ABORTED, f"an output that ended with {stop!s} raised {error!r}")
                    continue
                if made is None:
                    expect(stop is not StopReason.STOP, "an output that ended with an end token was rejected")
                    continue
                bench.scored(session)
                trajectories = made.trajectories if isinstance(made, Episode) else (made,)
                seen = [trajectory.reward for trajectory in trajectories]
                allowed = tolerance.atol + tolerance.rtol * abs(value)
                close = bool(seen) and all(abs(one - value) <= allowed for one in seen)
                what = f"a reward of {value} for {length} tokens that ended with {stop!s}"
                expect(close, f"{what} is recorded as {seen}")


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
