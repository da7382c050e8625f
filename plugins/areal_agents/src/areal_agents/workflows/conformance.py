"""What the conformance suite must know of the workflows of turns.

Knows: the options with which they run on the suite's tokenizer, whose chat template nobody can read back; what an
episode shows of each option.
Does not know: any check.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter, Variant

if TYPE_CHECKING:
    from areal_conformance.benches.workflow import ScriptedSession
    from areal_core.contract.data import Trajectory
    from areal_core.contract.workflow import RolloutWorkflow

_HALF = 0.5
"""A reward that does not pass."""


async def _episode(
    workflow: RolloutWorkflow, *rewards: float, room_for: int = 9
) -> tuple[ScriptedSession, tuple[Trajectory, ...]]:
    """Make an episode whose answers get these rewards, the last one from there on; return its trajectories, too.

    Behind `room_for` answers the context is full.
    """
    from areal_conformance.benches.workflow import ScriptedSession, drifting_tokenizer, generation
    from areal_core.contract.errors import PromptTooLong
    from areal_core.contract.workflow import RewardResult

    left = list(rewards)
    session = ScriptedSession(
        script=lambda turn: generation(turn) if turn < room_for else PromptTooLong("the context is full"),
        judge=lambda _: RewardResult(value=left.pop(0) if len(left) > 1 else left[0]),
        tokenizer=drifting_tokenizer(),
    )
    made = await workflow.arun_episode(session, {"prompt": "stone>", "answer": "enots"})
    return session, made.trajectories  # type: ignore[union-attr]  # these make episodes


async def _answers(workflow: RolloutWorkflow) -> list[tuple[int, int]]:
    """Return how many answers are given, and in how many trajectories.

    Where none passes, and where the first, second and third is worth a half.
    """
    told = ((0.0,), (_HALF,), (0.0, _HALF), (0.0, 0.0, _HALF, 1.0))
    made = [await _episode(workflow, *rewards) for rewards in told]
    return [(len(session.asked), len(trajectories)) for session, trajectories in made]


async def _ends(workflow: RolloutWorkflow) -> list[str]:
    """Return what ends an answer in each request, for a policy whose turns end with another token than its texts."""
    from areal_conformance.benches.workflow import ScriptedSession, generation, paying
    from areal_conformance.benches.workflow_vocabularies import END_OF_TEXT, chat_tokenizer

    tokenizer = copy.deepcopy(chat_tokenizer())
    tokenizer.eos_token = END_OF_TEXT
    session = ScriptedSession(script=generation, judge=paying(0.0), tokenizer=tokenizer)
    await workflow.arun_episode(session, {"prompt": "stone>"})
    ends = [one.sampling.stop_token_ids if one.sampling else () for one in session.asked]
    return [tokenizer.decode(sorted(set(each) - set(session.sampling.stop_token_ids))) for each in ends]


async def _worth(workflow: RolloutWorkflow) -> list[float]:
    """Return the reward of an episode whose n-th answer is right, for each n, and of some whose answers are not.

    Of these one ends with its turns, the others where the context has no room for another answer.
    """
    told = [(0.0,) * wrong + (1.0,) for wrong in range(4)]
    made = [await _episode(workflow, *rewards) for rewards in (*told, (_HALF,))]
    made += [await _episode(workflow, _HALF, room_for=answers) for answers in (1, 2)]
    return [trajectories[0].reward for _, trajectories in made]


async def _said(workflow: RolloutWorkflow) -> list[str]:
    """Return what stands after each answer in the next request, as text."""
    from areal_conformance.benches.workflow import ScriptedSession, paying
    from areal_conformance.benches.workflow_vocabularies import base_tokenizer, said
    from areal_core.contract.data import StopReason

    tokenizer = base_tokenizer()  # it has figures
    script = functools.partial(said, tokenizer, stop=StopReason.STOP)
    session = ScriptedSession(script=script, judge=paying(0.0), tokenizer=tokenizer)
    await workflow.arun_episode(session, {"prompt": "stone>", "answer": "enots"})
    asked = session.asked
    known = [len(one.input_ids) + len(one.generation.output_ids) for one in asked if one.generation]
    between = zip(known, asked[1:], strict=False)
    return [session.tokenizer.decode(after.input_ids[cut:]).strip() for cut, after in between]


async def _first(workflow: RolloutWorkflow) -> str:
    """Return the first request, as text."""
    session, _ = await _episode(workflow, 1.0)
    return session.tokenizer.decode(session.asked[0].input_ids)


PLAIN = Adapter(
    options={"": {"renderer": "plain"}},
    rows=(
        {"prompt": "stone>", "answer": "enots"},
        {"prompt": "abacab>", "answer": "bacaba"},
        {"messages": [{"role": "user", "content": "baobab>"}], "answer": "baboab"},
    ),
    variants={
        "max_turns": Variant(options={"max_turns": 2}, shows=_answers, gives=[(2, 1)] * 4),
        "turn_discount": Variant(
            options={"turn_discount": 0.5},
            shows=_worth,
            gives=[1.0, 0.5, 0.25, 0.125, 0.0625, 0.5, 0.25],
            again=False,  # rewards are not recorded as they were given
        ),
        "pass_reward": Variant(options={"pass_reward": _HALF}, shows=_answers, gives=[(4, 1), (1, 1), (2, 1), (3, 1)]),
        "feedback": Variant(
            options={"feedback": "no-{prompt}-try-{attempt}"},
            shows=_said,
            gives=[f"no-stone>-try-{number}" for number in (1, 2, 3)],
        ),
        "renderer": Variant(
            options={"renderer": "chatml"}, shows=_ends, gives=["<|endoftext|><|im_end|>"] * 4, again=False
        ),
        "system": Variant(options={"system": "beg-"}, shows=_first, gives="beg-stone>"),
    },
    without_effect={
        "renderer_options": "the renderer's own",
        "keep_thoughts": "no template of the suite's tokenizer has thoughts; tests of the package have some",
    },
)
