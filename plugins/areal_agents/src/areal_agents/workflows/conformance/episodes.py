"""What an episode shows, for the adapters of all workflows of turns; and the rows it is made from.

Knows: the suite's sessions and tokenizers.
Does not know: options, or any check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_conformance.benches.workflow import ScriptedSession
    from areal_core.contract.data import Episode
    from areal_core.contract.workflow import RolloutWorkflow

ROW = {"prompt": "stone>", "answer": "enots"}
ROWS: tuple[Mapping[str, Any], ...] = (
    ROW,
    {"prompt": "abacab>", "answer": "bacaba"},
    {"messages": [{"role": "user", "content": "baobab>"}], "answer": "baboab"},
)
TEXTS = ("no \u00e9", "stab", "\u00fc", "on")
"""What a policy says, turn by turn."""


async def said_by(
    workflow: RolloutWorkflow,
    *texts: str,
    row: Mapping[str, Any] = ROW,
    rewards: Callable[[int], float] = lambda _number: 0.0,
) -> tuple[ScriptedSession, Episode]:
    """Make an episode of a policy that says these texts, the last one again, and of a tokenizer that has figures.

    The n-th reward that is asked for is `rewards(n)`, from 1.
    """
    from areal_conformance.benches.workflow import ScriptedSession
    from areal_conformance.benches.workflow_vocabularies import base_tokenizer
    from areal_core.contract.workflow import RewardResult

    tokenizer = base_tokenizer()
    session = ScriptedSession(
        script=lambda turn: spoken(tokenizer, turn, texts[min(turn, len(texts) - 1)]),
        judge=lambda _: RewardResult(value=rewards(len(session.scored))),
        tokenizer=tokenizer,
    )
    made: Any = await workflow.arun_episode(session, row)
    return session, made


def spoken(tokenizer: Any, turn: int, text: str) -> Any:
    """Return a generation that says a text, with its end. Any: a Hugging Face tokenizer; a Generation."""
    from areal_conformance.benches.workflow import generation

    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return generation(turn, length=len(ids), output_ids=ids)


def between(session: ScriptedSession) -> list[str]:
    """Return what stands after each answer in the next request, as text."""
    asked = session.asked
    known = [len(one.input_ids) + len(one.generation.output_ids) for one in asked if one.generation]
    pairs = zip(known, asked[1:], strict=False)
    return [session.tokenizer.decode(after.input_ids[cut:]).strip() for cut, after in pairs]


async def heard(workflow: RolloutWorkflow) -> list[str]:
    """Return what the policy is told after each answer, none of which is right; a column has a name that is taken."""
    session, _ = await said_by(workflow, *TEXTS, row={**ROW, "attempt": "none"})
    return between(session)


async def first_asked(workflow: RolloutWorkflow) -> str:
    """Return the first request, as text."""
    session, _ = await said_by(workflow, "score: 1")
    return session.tokenizer.decode(session.asked[0].input_ids)


async def ends(workflow: RolloutWorkflow) -> list[str]:
    """Return what ends an answer in each request beside the run's own stop tokens.

    The policy's turns end with another token than its texts.
    """
    from areal_conformance.benches.workflow import ScriptedSession, paying
    from areal_conformance.benches.workflow_vocabularies import END_OF_TEXT, chat_tokenizer

    tokenizer = copy.deepcopy(chat_tokenizer())
    tokenizer.eos_token = END_OF_TEXT
    session = ScriptedSession(
        script=lambda turn: spoken(tokenizer, turn, "score: 1"), judge=paying(0.0), tokenizer=tokenizer
    )
    await workflow.arun_episode(session, ROW)
    own = set(session.sampling.stop_token_ids)
    found = [set(one.sampling.stop_token_ids if one.sampling else own) for one in session.asked]
    return [tokenizer.decode(sorted(each - own)) if own <= each else "not the run's own" for each in found]
