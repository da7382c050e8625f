"""The token that begins a text: chat templates write one, and tokenizers put one before what is encoded alone.

Knows: where it may stand in what the policy is asked with, and in what is trained on.
Does not know: whether a plain text gets one: the workflow's options say that.
"""

from __future__ import annotations

from collections.abc import Sequence

from areal_conformance.benches.workflow import Asked, WorkflowBench
from areal_conformance.benches.workflow_beginnings import beginning_tokenizer
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, expect


@check("workflow.tokens.one_beginning", level=Level.SINGLE, law=1, spec="workflow#the-beginning-of-a-text")
async def one_beginning(bench: WorkflowBench) -> None:
    """A beginning stands before a text once, or before no text of an episode; before later turns and elsewhere not."""
    tokenizer = beginning_tokenizer()
    begins = tokenizer.bos_token_id
    if tokenizer.encode("a")[0] != begins or tokenizer.encode("a", add_special_tokens=False)[0] == begins:
        raise Inconclusive("the suite's tokenizer does not begin a text as it should")
    workflow = bench.fresh()
    for row in bench.rows:
        session = bench.session()
        session.tokenizer = tokenizer
        made = await bench.soon(workflow.arun_episode(session, row), "an episode that waits for nobody")
        for asked in session.asked:
            _once(asked.input_ids, begins, "the policy was asked with")
        for trajectory in getattr(made, "trajectories", [made]):
            _once(trajectory.input_ids.tolist(), begins, "the trajectory is")
        if "input_ids" in row:  # no text: its ids are asked with as they are
            continue
        first = [asked.input_ids for number, asked in enumerate(session.asked) if not _goes_on(session.asked, number)]
        kinds = {ids[0] == begins for ids in first}
        expect(len(kinds) == 1, f"of the texts that an episode asks with some begin with {begins}: {first}")


def _goes_on(asked: Sequence[Asked], number: int) -> bool:
    """Tell whether a request begins with all of an earlier one."""
    ids = asked[number].input_ids
    return any(ids[: len(one.input_ids)] == one.input_ids for one in asked[:number])


def _once(ids: Sequence[int], begins: int, what: str) -> None:
    places = [place for place, token in enumerate(ids) if token == begins]
    expect(places in ([], [0]), f"a text begins once, with the token {begins}; {what} {list(ids)}, it is at {places}")
