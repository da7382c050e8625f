"""Where an answer ends and the next turn begins: what stands there follows from the answer's tokens alone.

Knows: answers of one text that said their end or did not, by every stop reason; what a chat template writes there.
Does not know: what is said in the next turn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from areal_conformance.benches.workflow import WorkflowBench, generation
from areal_conformance.benches.workflow_vocabularies import END_OF_TEXT, base_tokenizer, chat_tokenizer, moved, said
from areal_conformance.check import Level, check
from areal_conformance.outcome import Exempt, Violation, expect
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation

_Policy = Callable[[int], Generation]
_SAID = "no stab"
"""A text with letters that a tokenizer would take together."""


@check("workflow.turns.one_end", level=Level.SINGLE, law=1, spec="workflow#between-the-turns", requires=("multi_turn",))
async def one_end(bench: WorkflowBench) -> None:
    """Behind an answer its end stands once, said or written, and then the same, whatever the answer ended by."""
    other = copy.deepcopy(chat_tokenizer())
    other.eos_token = END_OF_TEXT  # a turn ends otherwise than a text
    compared = 0
    for tokenizer, end in (
        (chat_tokenizer(), chat_tokenizer().eos_token_id),
        (other, chat_tokenizer().eos_token_id),
        (base_tokenizer(), base_tokenizer().eos_token_id),
    ):
        workflow = bench.fresh()
        forms = {tuple(row): moved(row) for row in bench.rows}
        for row in forms.values():
            templated = _templated(tokenizer, row)
            asked, due = await _behind(bench, workflow, tokenizer, row, _answering(tokenizer, end, StopReason.STOP))
            if due is None or (end != tokenizer.eos_token_id and asked != templated):
                continue  # no turn goes on from it, or nothing says that this token ends a turn
            written = {(end, *due)} if asked == templated else {(end, *due), due}
            for stop in StopReason:
                ends = [(end, {due}, False), (None, written, False)]
                ends += [(None, written, True)] if stop is StopReason.LENGTH else []  # it went on behind its end
                for own, wanted, inside in ends:
                    script = _answering(tokenizer, own, stop, inside=end if inside else None)
                    _, seen = await _behind(bench, workflow, tokenizer, row, script)
                    compared += seen is not None
                    told = f"that ended by {stop!s} and {'without' if own is None else 'with'} the end {end} stands"
                    expect(
                        seen is None or seen in wanted,
                        f"behind an answer {told} {seen}; behind one that said its end and stopped {due}",
                    )
    if not compared:
        raise Exempt("no request goes on from an answer: each begins a conversation of its own")


def _templated(tokenizer: Any, row: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return what the tokenizer's template makes of a row, if it has one. Any: transformers is not typed here."""
    if "messages" not in row or tokenizer.chat_template is None:
        return None
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _answering(tokenizer: Any, end: int | None, stop: StopReason, inside: int | None = None) -> _Policy:
    """Return a policy whose first answer ends with this token and by this reason, letter by letter. Any: as above.

    Another token may stand `inside` of it, behind its first letter.
    """
    letters = [token for letter in _SAID for token in tokenizer.encode(letter, add_special_tokens=False)]
    assert letters != tokenizer.encode(_SAID, add_special_tokens=False)

    def script(turn: int) -> Generation:
        if turn:
            return said(tokenizer, turn, StopReason.STOP)
        ids = [*letters, *([] if end is None else [end])]
        ids[1:1] = [] if inside is None else [inside]
        return generation(turn, length=len(ids), stop=stop, output_ids=ids)

    return script


async def _behind(
    bench: WorkflowBench, workflow: Any, tokenizer: Any, row: Mapping[str, Any], script: _Policy
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the first request, and what stands behind its answer in the next that goes on from it. Any: as above.

    None in place of that where no request goes on from it: an aborted answer may end an episode in any way.
    """
    session = bench.session(script)
    session.tokenizer = tokenizer
    try:
        await bench.soon(workflow.arun_episode(session, row), "an episode that waits for nobody")
    except Violation:
        raise
    except Exception:
        if script(0).stop_reason is not StopReason.ABORTED and tokenizer.chat_template is not None:
            raise
    if not session.asked:
        return (), None
    first, *later = session.asked
    known = (*first.input_ids, *script(0).output_ids)
    behind = [one.input_ids[len(known) :] for one in later if one.input_ids[: len(known)] == known]
    begun = len(first.input_ids)
    alike = [one for one in later if len(one.input_ids) > begun and one.input_ids[:begun] == first.input_ids]
    alike = [one for one in alike if str(tokenizer.decode(list(one.input_ids[begun:]))).startswith(_SAID)]
    if alike and not behind:
        raise Violation(
            f"behind an answer that ended by {script(0).stop_reason!s} the conversation goes on from other tokens: "
            f"{list(known)} were asked and answered, asked is {list(alike[0].input_ids)}",
            law=1,
        )
    return first.input_ids, next(iter(behind), None)
