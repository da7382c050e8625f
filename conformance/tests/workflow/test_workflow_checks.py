"""The scripted session is what it says, and workflows in order pass every check."""

from __future__ import annotations

import pytest

from areal_conformance.benches.workflow import drifting_tokenizer, generation
from areal_conformance.checks import checks_of
from areal_conformance.outcome import Outcome
from areal_conformance.session import Session
from areal_conformance.target import Locator, locate
from areal_core.contract.data import StopReason


def test_outputs_do_not_survive_encoding_anew() -> None:
    """What is decoded and encoded again comes back as other ids, so that it shows."""
    tokenizer = drifting_tokenizer()
    for number in range(4):
        ids = list(generation(number).output_ids)

        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids
        assert max(ids) < len(tokenizer)


def test_prompts_survive_encoding_anew() -> None:
    """Texts of the rows come back as they are."""
    tokenizer = drifting_tokenizer()

    assert tokenizer.decode(tokenizer.encode("abacab>", add_special_tokens=False)) == "abacab>"


def test_generations_are_whole_and_all_different() -> None:
    """Spans cover the output, versions rise, and no two numbers share one."""
    made = [generation(number, length=length) for number in range(5) for length in (1, 2, 3, 17)]
    for one in made:
        spans = [(span.start, span.stop) for span in one.version_spans]

        assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
        assert (spans[0][0], spans[-1][1], len(one.logprobs)) == (0, len(one.output_ids), len(one.output_ids))
        assert one.stop_reason is StopReason.STOP
    assert len({one.output_ids for one in made}) == len(made)


@pytest.mark.parametrize("name", ["single_turn", "second"])
def test_workflows_in_order_pass(name: str) -> None:
    """The core's own and the second one, by the same checks."""
    session = Session(locate(Locator(role="workflow", name=name)))
    try:
        results = [session.run(check) for check in checks_of("workflow") if check.role == "workflow"]
    finally:
        session.close()

    assert [(r.check, r.message) for r in results if r.outcome not in (Outcome.PASS, Outcome.SKIP)] == []
