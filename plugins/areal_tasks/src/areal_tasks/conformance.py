"""What the conformance suite must know of the shipped workflows.

Knows: the options that switch an ability on, and every form of a row.
Does not know: any check.
"""

from __future__ import annotations

import copy
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
    rows = ({"prompt": "stone>"}, {"messages": _QUESTION}, {"messages": [_OWN_SYSTEM, *_QUESTION]})
    return [tokenizer.decode(workflow.prompt_ids(tokenizer, row, "a task")) for row in rows]


def _templated_prompts(workflow: SingleTurnWorkflow) -> list[str]:
    """Return the same for rows whose prompt is no conversation."""
    return _templated(workflow, {"prompt": "baobab>"})


def _templated(workflow: SingleTurnWorkflow, asked: Mapping[str, Any] | None = None) -> list[str]:
    """Return what the policy is asked with for rows with words for the chat template, by one that has places for them.

    A row without any, with a variable of its own, with a switch of its own, with a tool. Any: the data set decides.
    """
    from areal_conformance.benches.workflow import drifting_tokenizer

    tokenizer = copy.deepcopy(drifting_tokenizer())
    tokenizer.chat_template = _SPEAKING + tokenizer.chat_template
    more: tuple[Mapping[str, Any], ...] = (
        {},
        {"chat_template_kwargs": {"tone": "low-"}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]},
    )
    rows = [{**(asked or {"messages": _QUESTION}), **own} for own in more]
    return [tokenizer.decode(workflow.prompt_ids(tokenizer, row, "a task")) for row in rows]


async def _begun(workflow: SingleTurnWorkflow) -> list[bool]:
    """Return which requests of an episode begin with the token that the tokenizer begins a text with."""
    from areal_conformance.benches.workflow import ScriptedSession, paying
    from areal_conformance.benches.workflow_beginnings import beginning_tokenizer

    tokenizer = beginning_tokenizer()
    session = ScriptedSession(script=_word, judge=paying(), tokenizer=tokenizer)
    await workflow.arun_episode(session, {"prompt": "stone>"})
    return [one.input_ids[0] == tokenizer.bos_token_id for one in session.asked]


async def _critic_asked(workflow: CritiqueWorkflow) -> list[str]:
    """Return what the critic is asked with, and what the policy is told after its first answer, as text."""
    from areal_conformance.benches.workflow import ScriptedSession, drifting_tokenizer, paying

    session = ScriptedSession(script=_word, judge=paying(), tokenizer=drifting_tokenizer())
    await workflow.arun_episode(session, {"prompt": "stone{answer}>"})  # no part of it is filled in
    first, critic, again = session.asked
    known = len(first.input_ids) + len(_word(0).output_ids)
    return [session.tokenizer.decode(ids).replace("<unk>", "") for ids in (critic.input_ids, again.input_ids[known:])]


def _word(turn: int) -> Generation:
    """Return an output of a letter five times and an end: another letter in each turn."""
    from areal_conformance.benches.workflow import generation

    return generation(turn, output_ids=[3 + turn] * 5 + [1])


_QUESTION = [{"role": "user", "content": "baobab>"}]
_OWN_SYSTEM = {"role": "system", "content": "own-"}
_SPEAKING = (
    "{{ tone }}{% if enable_thinking is defined %}{{ 'think-' if enable_thinking else 'hush-' }}{% endif %}"
    "{% for tool in tools or [] %}{{ tool['function']['name'] }}-{% endfor %}"
)
_OF_PROMPTS = {
    "image_marker": "words of a text, in conversations with images",
    "image_folder": "where relative paths begin; the suite's images are bytes",
}
_OF_MEMORY = {"areal_tasks.workflows.single_turn:REMEMBERED_PROMPTS": "what is forgotten is encoded again"}
_ROWS: tuple[Mapping[str, Any], ...] = (
    {"prompt": "stone>", "answer": "enots"},
    {"prompt": "abacab>", "answer": "bacaba"},
    {"messages": [{"role": "user", "content": "baobab>"}], "answer": "baboab"},
    {"input_ids": [8, 15, 3, 4, 29], "answer": "bamf"},
)
_OF_TEMPLATES = {
    "template": Variant(
        options={"template": {"tone": "loud-"}},
        shows=_templated,
        gives=["loud-u>baobab>-a>", "low-u>baobab>-a>", "loud-think-u>baobab>-a>", "loud-add-u>baobab>-a>"],
        again=False,
    ),
    "enable_thinking": Variant(
        options={"enable_thinking": False},
        shows=_templated,
        gives=["hush-u>baobab>-a>", "low-hush-u>baobab>-a>", "think-u>baobab>-a>", "hush-add-u>baobab>-a>"],
        again=False,  # the suite's own template has no such switch
    ),
}
SINGLE_TURN = Adapter(
    variants={
        **_OF_TEMPLATES,
        "chat": Variant(
            options={"chat": True}, shows=_asked, gives=["u>stone>-a>", "u>baobab>-a>", "s>own--u>baobab>-a>"]
        ),
        "chat_template": Variant(
            options={"chat": True, "template": {"tone": "loud-"}},
            shows=_templated_prompts,
            gives=["loud-u>baobab>-a>", "low-u>baobab>-a>", "loud-think-u>baobab>-a>", "loud-add-u>baobab>-a>"],
            again=False,
        ),
        "system": Variant(
            options={"system": "beg-"},
            shows=_asked,
            gives=["s>beg--u>stone>-a>", "s>beg--u>baobab>-a>", "s>beg--s>own--u>baobab>-a>"],
        ),
        "unbegun": Variant(options={"add_special_tokens": False}, shows=_begun, gives=[False], again=False),
    },
    without_effect=_OF_PROMPTS,
    no_threshold=_OF_MEMORY,
    rows=_ROWS,
)
CRITIQUE = Adapter(
    rows=_ROWS,
    options={"adapters": {"adapter": "critic"}},
    variants={
        **_OF_TEMPLATES,
        "unbegun": Variant(options={"add_special_tokens": False}, shows=_begun, gives=[False] * 3, again=False),
        "question": Variant(
            options={"question": "of-{prompt}-is-{answer}"},
            shows=_critic_asked,
            gives=["of-stoneanswer>-is-aaaaa", "bbbbbnsweragain"],
        ),
        "again": Variant(
            options={"again": "so-{critique}"},
            shows=_critic_asked,
            gives=["stoneanswer>aaaaahatiswrongwiththisanswer", "so-bbbbb"],
        ),
        "chat": Variant(options={"chat": True}, shows=_critic_asked),
        "system": Variant(options={"system": "beg-"}, shows=_critic_asked),
    },
    without_effect=_OF_PROMPTS,
    no_threshold=_OF_MEMORY,
)
