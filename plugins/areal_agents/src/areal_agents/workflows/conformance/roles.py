"""What the conformance suite must know of `self_play` and `judge`, in which the policy has two roles.

Knows: what an episode shows of each option.
Does not know: any check.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from areal_agents.workflows.conformance.episodes import ROWS, ends, first_asked, said_by, spoken
from areal_agents.workflows.conformance.renderers import built
from areal_conformance.adapter import Adapter, Bounds, Scoring, Variant

if TYPE_CHECKING:
    from areal_core.contract.workflow import RolloutWorkflow


async def _asked(workflow: RolloutWorkflow) -> list[str]:
    """Return each request as text, for a policy whose words look like a place of a template.

    The row has a task, too, which is not the one that was made.
    """
    session, _ = await said_by(workflow, "{answer} 7", "score: 1", row={**ROWS[0], "task": "the row's"})
    return [session.tokenizer.decode(one.input_ids) for one in session.asked]


async def _judged(workflow: RolloutWorkflow) -> list[str]:
    """Return what a judge is asked about rows with a prompt, with messages, with both, and with several messages."""
    made = []
    several = [{"role": "system", "content": "own-"}, *ROWS[2]["messages"]]
    for row in (ROWS[0], ROWS[2], {**ROWS[2], "prompt": "other>"}, {**ROWS[2], "messages": several}):
        session, _ = await said_by(workflow, "{answer} 7", "score: 1", row=row)
        made.append(session.tokenizer.decode(session.asked[1].input_ids))
    return made


async def _roles(workflow: RolloutWorkflow) -> tuple[list[tuple[int, float]], float, float]:
    """Return role and reward of each trajectory, where one solver is right, and what the metrics say of it."""
    _, made = await said_by(workflow, "no", rewards=lambda number: float(number == 1))
    roles = [(int(each.sequence_extras["role"]), each.reward) for each in made.trajectories]
    return roles, made.metrics["self_play/solved"], made.metrics["self_play/proposal"]


async def _own(workflow: RolloutWorkflow) -> list[tuple[str, float]]:
    """Return what each solver said and its reward, where whoever was asked first answers last."""
    from areal_conformance.benches.workflow import ScriptedSession
    from areal_conformance.benches.workflow_vocabularies import base_tokenizer
    from areal_core.contract.workflow import RewardResult

    tokenizer, said = base_tokenizer(), ("task", "0", "1", "2", "3")

    async def later(turn: int) -> None:
        for _ in range(3 * (len(said) - turn)):
            await asyncio.sleep(0)

    session = ScriptedSession(
        script=lambda turn: spoken(tokenizer, turn, said[turn]),
        judge=lambda value: RewardResult(value=float(value.completion)),
        tokenizer=tokenizer,
        at_generate=later,
    )
    made = await workflow.arun_episode(session, ROWS[0])
    solvers = made.trajectories[1:]  # type: ignore[union-attr]  # it makes episodes
    words = [tokenizer.decode(one.input_ids[one.loss_mask.bool()], skip_special_tokens=True) for one in solvers]
    return [(text, one.reward) for text, one in zip(words, solvers, strict=True)]


async def _grades(workflow: RolloutWorkflow) -> list[tuple[object, int]]:
    """Return what an answer is worth and the number of requests, or what the episode fails with: by what judges say."""
    from areal_core.contract.errors import EpisodeFailed

    made: list[tuple[object, int]] = []
    for words in (
        ("Score: 9? No. Score: 4",),
        ("in 2 words", "score = -2.5"),
        ("1", "2", "3", "score: 4"),
        ("score: 0",),
    ):
        try:
            session, episode = await said_by(workflow, "answer 0", *words)
            made.append(([each.reward for each in episode.trajectories], len(session.asked)))
        except EpisodeFailed as error:
            made.append((type(error).__name__, 0))
    return made


_UNTRIED = {"renderer_options": "the renderer's own", "keep_thoughts": "nobody is asked a second time"}
SELF_PLAY = Adapter(
    build=built("self_play"),
    options={"": {"renderer": "plain", "tries": 2}},
    rows=ROWS,
    scoring=Scoring(adds=("task",), worth=lambda value: (4 * value * (1 - value), value)),
    variants={
        "question": Variant(
            options={"question": "of-{task}-as-{answer}"},
            shows=_asked,
            gives=["stone>", *["of-{answer} 7-as-enots"] * 2],
        ),
        "braces": Variant(
            options={"question": "{task}-in-{box}"},
            shows=_asked,
            gives=["stone>", *["{answer} 7-in-{box}"] * 2],
            again=False,  # the suite's own tokenizer has none
        ),
        "tries": Variant(
            options={"tries": 4}, shows=_roles, gives=([(0, 0.75), (1, 1.0), *[(1, 0.0)] * 3], 0.25, 0.75)
        ),
        "rewards": Variant(
            options={"tries": 4}, shows=_own, gives=[(str(number), float(number)) for number in range(4)], again=False
        ),
        "system": Variant(options={"system": "beg-"}, shows=first_asked, gives="beg-stone>"),
        "renderer": Variant(
            options={"renderer": "chatml"}, shows=ends, gives=["<|endoftext|><|im_end|>"] * 3, again=False
        ),
    },
    bounds={"tries": Bounds(takes=(1,), refuses=(0,))},
    without_effect=_UNTRIED,
)
JUDGE = Adapter(
    build=built("judge"),
    options={"": {"renderer": "grading"}, "adapters": {"adapter": "critic"}},
    rows=ROWS,
    scoring=Scoring(asks=False),
    variants={
        "question": Variant(
            options={"question": "of-{prompt}-is-{answer}-{hint}"},
            shows=_judged,
            gives=[f"of-{prompt}>-is-{{answer}} 7-{{hint}}" for prompt in ("stone", "baobab", "other", "baobab")],
        ),
        "scale": Variant(
            options={"scale": 4.0}, shows=_grades, gives=[([1.0], 2), ([-0.625], 3), ("EpisodeFailed", 0), ([0.0], 2)]
        ),
        "tries": Variant(options={"tries": 4}, shows=_grades, gives=[([0.4], 2), ([-0.25], 3), ([0.4], 5), ([0.0], 2)]),
        "pattern": Variant(
            options={"pattern": r"(\d)\? No"},
            shows=_grades,
            gives=[([0.9], 2), *[("EpisodeFailed", 0)] * 3],
            again=False,  # the renderer's scores are none of those
        ),
        "system": Variant(options={"system": "beg-"}, shows=first_asked, gives="beg-stone>"),
        "renderer": Variant(
            options={"renderer": "chatml"}, shows=ends, gives=["<|endoftext|><|im_end|>"] * 2, again=False
        ),
    },
    bounds={"tries": Bounds(takes=(1,), refuses=(0,)), "scale": Bounds(takes=(1e-9,), refuses=(0.0,))},
    without_effect=_UNTRIED,
)
