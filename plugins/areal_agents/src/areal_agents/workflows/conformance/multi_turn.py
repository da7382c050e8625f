"""What the conformance suite must know of the workflow `multi_turn`.

Knows: the options with which it runs on the suite's tokenizer, whose chat template nobody can read back; what an
episode shows of each option.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_agents.workflows.conformance.episodes import ROW, ROWS, ends, first_asked, heard, said_by
from areal_agents.workflows.conformance.renderers import built
from areal_conformance.adapter import Adapter, Bounds, Variant

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
    made = await workflow.arun_episode(session, ROW)
    return session, made.trajectories  # type: ignore[union-attr]  # these make episodes


async def _answers(workflow: RolloutWorkflow) -> list[tuple[int, int]]:
    """Return how many answers are given, and in how many trajectories.

    Where none passes, where the first, second and third is worth a half, and where the first is worth more than enough.
    """
    told = ((0.0,), (_HALF,), (0.0, _HALF), (0.0, 0.0, _HALF, 1.0), (2.0,))
    made = [await _episode(workflow, *rewards) for rewards in told]
    return [(len(session.asked), len(trajectories)) for session, trajectories in made]


async def _worth(workflow: RolloutWorkflow) -> list[float]:
    """Return the reward of an episode whose n-th answer is right, for each n, and of some whose answers are not.

    Of these one ends with its turns, the others where the context has no room for another answer.
    """
    told = [(0.0,) * wrong + (1.0,) for wrong in range(4)]
    made = [await _episode(workflow, *rewards) for rewards in (*told, (_HALF,))]
    made += [await _episode(workflow, _HALF, room_for=answers) for answers in (1, 2)]
    return [trajectories[0].reward for _, trajectories in made]


async def _begun(workflow: RolloutWorkflow) -> tuple[str, int, list[float], str]:
    """Return the renderer, the numbers of trajectories, of turns and of new beginnings, and what was asked last."""
    session, made = await said_by(workflow, "ab", "cd", "ef", "gh")
    last = session.tokenizer.decode(session.asked[-1].input_ids, skip_special_tokens=True)
    named = workflow.writes(session.tokenizer)  # type: ignore[attr-defined]
    return named, len(made.trajectories), [made.metrics[name] for name in ("turns", "agent/restarted")], last


_OF_TURNS = ("workflow.turns.all", "workflow.turns.prefix", "workflow.turns.between")
MULTI_TURN = Adapter(
    build=built("multi_turn"),
    options={"": {"renderer": "plain"}},
    rows=ROWS,
    variants={
        "max_turns": Variant(options={"max_turns": 2}, shows=_answers, gives=[(2, 1)] * 4 + [(1, 1)]),
        "turn_discount": Variant(
            options={"turn_discount": 0.5},
            shows=_worth,
            gives=[1.0, 0.5, 0.25, 0.125, 0.0625, 0.5, 0.25],
            again=False,  # rewards are not recorded as they were given
        ),
        "pass_reward": Variant(
            options={"pass_reward": _HALF}, shows=_answers, gives=[(4, 1), (1, 1), (2, 1), (3, 1), (1, 1)]
        ),
        "feedback": Variant(
            options={"feedback": "no-{prompt}-try-{attempt}-in-{box}"},
            shows=heard,
            gives=[f"no-stone>-try-{number}-in-{{box}}" for number in (1, 2, 3)],
        ),
        "renderer": Variant(
            options={"renderer": "chatml"}, shows=ends, gives=["<|endoftext|><|im_end|>"] * 4, again=False
        ),
        "thoughts_left_out": Variant(
            options={"renderer": "thinking", "feedback": "no-"},
            shows=_begun,
            gives=("thinking", 4, [4.0, 3.0], "stone>bno-dno-fno-"),
            checks=_OF_TURNS,
        ),
        "keep_thoughts": Variant(
            options={"renderer": "thinking", "feedback": "no-", "keep_thoughts": True},
            shows=_begun,
            gives=("thinking", 1, [4.0, 0.0], "stone>abno-cdno-efno-"),
            checks=_OF_TURNS,
        ),
        "system": Variant(options={"system": "beg-"}, shows=first_asked, gives="beg-stone>"),
    },
    bounds={
        "max_turns": Bounds(takes=(1,), refuses=(0,)),
        "turn_discount": Bounds(takes=(1e-9, 1.0), refuses=(0.0, 1.001)),
    },
    without_effect={"renderer_options": "the renderer's own"},
)
