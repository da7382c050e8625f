"""What the conformance suite must know of the shipped workflows.

Knows: the options that switch an ability on, and every form of a row.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter, Variant

if TYPE_CHECKING:
    from areal_tasks.workflows.single_turn import SingleTurnWorkflow


def _asked(workflow: SingleTurnWorkflow) -> list[list[int]]:
    """Return what the policy is asked with for a text and for a conversation, by a tokenizer with a template."""
    from areal_conformance.benches.workflow import drifting_tokenizer

    rows = ({"prompt": "stone>"}, {"messages": [{"role": "user", "content": "baobab>"}]})
    return [workflow.prompt_ids(drifting_tokenizer(), row, "a task") for row in rows]


SINGLE_TURN = Adapter(
    variants={
        "chat": Variant(options={"chat": True}, shows=_asked),
        "system": Variant(options={"system": "beg-"}, shows=_asked),
    },
    without_effect={
        "template": "given on to the chat template, of which the suite's knows no variable",
        "enable_thinking": "as `template`",
        "add_special_tokens": "the suite's tokenizer puts none around a text",
        "image_marker": "words of a text, in conversations with images",
        "image_folder": "where relative paths begin; the suite's images are bytes",
    },
    rows=(
        {"prompt": "stone>", "answer": "enots"},
        {"prompt": "abacab>", "answer": "bacaba"},
        {"messages": [{"role": "user", "content": "baobab>"}], "answer": "baboab"},
        {"input_ids": [8, 15, 3, 4, 29], "answer": "bamf"},
    ),
)
CRITIQUE = Adapter(options={"adapters": {"adapter": "critic"}})
