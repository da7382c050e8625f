"""Policies with other tokenizers than the suite's own: ids above 65,535, letters of several tokens, no chat template.

Knows: what is the same with every tokenizer, and which rows one without a chat template cannot write.
Does not know: how a workflow writes a prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

from areal_conformance.benches.workflow import ScriptedSession, WorkflowBench
from areal_conformance.benches.workflow_tokens import told_right, traced
from areal_conformance.benches.workflow_vocabularies import base_tokenizer, chat_tokenizer, moved, said
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.data import Episode, StopReason
from areal_core.contract.errors import ArealError

_SESSION = "workflow#areal_core.contract.workflow.Session"
_FORMS = ("input_ids", "messages", "prompt")
"""The most exact first."""


@check("workflow.tokens.vocabulary", level=Level.SINGLE, law=1, spec="workflow#other-tokenizers")
async def vocabulary(bench: WorkflowBench) -> None:
    """Ids above 65,535 are asked, trained and told to the reward as they are, and the end of an answer stands once."""
    for tokenizer in (chat_tokenizer(), base_tokenizer()):
        workflow = bench.fresh()
        for row in map(moved, bench.rows):
            for stop in (StopReason.STOP, StopReason.LENGTH):
                session = bench.session(lambda turn, t=tokenizer, s=stop: said(t, turn, s))  # type: ignore[misc]
                session.tokenizer = tokenizer
                made = await _made(bench, workflow, session, row)
                if made is not None:
                    _whole(made, session, row, bench.adds)


@check("workflow.rows.exact_form", level=Level.SINGLE, law=1, spec="workflow#other-tokenizers")
async def exact_form(bench: WorkflowBench) -> None:
    """Of several forms of a prompt in a row the most exact counts, wherever its column stands."""
    forms: dict[str, Mapping[str, Any]] = {}
    for row in bench.rows:
        here = [form for form in _FORMS if form in row]
        if len(here) == 1:
            forms.setdefault(here[0], row)
    if len(forms) < 2:
        bench.notes.append("the adapter's rows have one form of a prompt")
    for exact, other in combinations([form for form in _FORMS if form in forms], 2):
        alone = await _asked(bench, forms[exact])
        for row in ({**forms[other], **forms[exact]}, {**forms[exact], other: forms[other][other]}):
            seen = await _asked(bench, row)
            told = f"a row with the columns {list(row)} is asked with {seen}, with {exact!r} alone with {alone}"
            expect(seen == alone, told)


async def _asked(bench: WorkflowBench, row: Mapping[str, Any]) -> tuple[int, ...]:
    session = bench.session()
    await bench.episode(session, row)
    return session.asked[0].input_ids


async def _made(bench: WorkflowBench, workflow: Any, session: ScriptedSession, row: Mapping[str, Any]) -> Any:
    """Return what was made of a row; None if it is a conversation, and nothing says how one is written."""
    try:
        made = await bench.soon(workflow.arun_episode(session, row), "an episode that waits for nobody")
    except ArealError as error:
        if getattr(session.tokenizer, "chat_template", None) is None and not session.asked:
            return None
        raise Violation(f"with a tokenizer of {len(session.tokenizer)} ids it raised {error!r}") from error  # type: ignore[arg-type]
    return made


def _whole(made: Any, session: ScriptedSession, row: Mapping[str, Any], adds: Collection[str]) -> None:
    """Expect an episode to hold what was asked and said, in ids and in text. Any: what a workflow gives."""
    episode = (
        made
        if isinstance(made, Episode)
        else Episode(trajectories=(made,), task_id=session.task_id, group_id=session.group_id)
    )
    expect(bool(traced(episode, session)), "the episode trains on no generated token")
    told_right(session, session.tokenizer, row, adds)
    first = session.asked[0].input_ids
    if "input_ids" in row:
        wanted = tuple(row["input_ids"])
        starts = [first[at : at + len(wanted)] for at in range(len(first))]
        expect(wanted in starts, f"the row has the ids {wanted}, the policy was asked with {first}")
    elif isinstance(row.get("prompt"), str) and "messages" not in row:
        text = session.tokenizer.decode(first)
        expect(row["prompt"] in text, f"the prompt {row['prompt']!r} is not in what the policy was asked: {text!r}")
    end = session.tokenizer.eos_token_id  # type: ignore[attr-defined]
    for before, after in combinations(session.asked, 2):
        assert before.generation is not None
        known = (*before.input_ids, *before.generation.output_ids)
        if after.input_ids[: len(known)] == known and known[-1] == end:
            told = f"an answer ended with {end}, and the next request has that token once more behind it"
            expect(after.input_ids[len(known)] != end, told)
