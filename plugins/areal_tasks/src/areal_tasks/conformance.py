"""What the conformance suite must know of the shipped workflows.

Knows: the options that switch an ability on, and every form of a row.
Does not know: any check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from areal_conformance.adapter import Adapter, Variant

if TYPE_CHECKING:
    from areal_core.contract.inference import Generation
    from areal_tasks.workflows.critique import CritiqueWorkflow
    from areal_tasks.workflows.single_turn import SingleTurnWorkflow


def _asked(workflow: SingleTurnWorkflow) -> list[str]:
    """Return what the policy is asked with for a text and for a conversation, by a tokenizer with a template."""
    from areal_conformance.benches.workflow import drifting_tokenizer

    tokenizer = drifting_tokenizer()
    rows = ({"prompt": "stone>"}, {"messages": [{"role": "user", "content": "baobab>"}]})
    return [tokenizer.decode(workflow.prompt_ids(tokenizer, row, "a task")) for row in rows]


async def _critic_asked(workflow: CritiqueWorkflow) -> list[str]:
    """Return what the critic is asked with, and what the policy is told after its first answer, as text."""
    from areal_conformance.benches.workflow import ScriptedSession, drifting_tokenizer, paying

    session = ScriptedSession(script=_word, judge=paying(), tokenizer=drifting_tokenizer())
    await workflow.arun_episode(session, {"prompt": "stone>"})
    first, critic, again = session.asked
    known = len(first.input_ids) + len(_word(0).output_ids)
    return [session.tokenizer.decode(ids).replace("<unk>", "") for ids in (critic.input_ids, again.input_ids[known:])]


def _word(turn: int) -> Generation:
    """Return an output of a letter five times and an end: another letter in each turn."""
    from areal_conformance.benches.workflow import generation

    return generation(turn, output_ids=[3 + turn] * 5 + [1])


_OF_PROMPTS = {
    "template": "given on to the chat template, of which the suite's knows no variable",
    "enable_thinking": "as `template`",
    "add_special_tokens": "the suite's tokenizer puts none around a text",
    "image_marker": "words of a text, in conversations with images",
    "image_folder": "where relative paths begin; the suite's images are bytes",
}
_ROWS: tuple[Mapping[str, Any], ...] = (
    {"prompt": "stone>", "answer": "enots"},
    {"prompt": "abacab>", "answer": "bacaba"},
    {"messages": [{"role": "user", "content": "baobab>"}], "answer": "baboab"},
    {"input_ids": [8, 15, 3, 4, 29], "answer": "bamf"},
)
SINGLE_TURN = Adapter(
    variants={
        "chat": Variant(options={"chat": True}, shows=_asked, gives=["u>stone>-a>", "u>baobab>-a>"]),
        "system": Variant(
            options={"system": "beg-"}, shows=_asked, gives=["s>beg--u>stone>-a>", "s>beg--u>baobab>-a>"]
        ),
    },
    without_effect=_OF_PROMPTS,
    rows=_ROWS,
)
CRITIQUE = Adapter(
    rows=_ROWS,
    options={"adapters": {"adapter": "critic"}},
    variants={
        "question": Variant(
            options={"question": "of-{prompt}-is-{answer}"},
            shows=_critic_asked,
            gives=["of-stone>-is-aaaaa", "bbbbbnsweragain"],
        ),
        "again": Variant(
            options={"again": "so-{critique}"},
            shows=_critic_asked,
            gives=["stone>aaaaahatiswrongwiththisanswer", "so-bbbbb"],
        ),
        "chat": Variant(options={"chat": True}, shows=_critic_asked),
        "system": Variant(options={"system": "beg-"}, shows=_critic_asked),
    },
    without_effect=_OF_PROMPTS,
)
