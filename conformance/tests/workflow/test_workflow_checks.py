"""The scripted session is what it says, and workflows in order pass every check."""

from __future__ import annotations

import attrs
import pytest

from areal_conformance.adapter import Scoring
from areal_conformance.benches.workflow import drifting_tokenizer, generation
from areal_conformance.checks import checks_of
from areal_conformance.outcome import Outcome, Result
from areal_conformance.session import Session
from areal_conformance.target import Locator, Target, locate
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


def results_of(target: Target, *ids: str) -> list[Result]:
    """Make the checks of workflows, or some, and return how those ended that were neither passed nor skipped."""
    session = Session(target)
    try:
        made = [
            session.run(one) for one in checks_of("workflow") if one.role == "workflow" and (not ids or one.id in ids)
        ]
    finally:
        session.close()
    return [one for one in made if one.outcome not in (Outcome.PASS, Outcome.SKIP)]


@pytest.mark.parametrize("name", ["single_turn", "second", "multi_turn", "tools", "self_play"])
def test_workflows_in_order_pass(name: str) -> None:
    """The shipped ones and the second one, by the same checks."""
    results = results_of(locate(Locator(role="workflow", name=name)))

    assert [(one.check, one.message) for one in results] == []


@pytest.mark.slow
def test_an_agent_of_the_users_is_held_to_the_same_checks() -> None:
    """Those that its requests over HTTP do not make slow; `conformance/certify.sh` makes all."""
    quick = [
        one.id for one in checks_of("workflow") if one.id not in ("workflow.rows.own_prompt", "workflow.options.checks")
    ]
    results = results_of(locate(Locator(role="workflow", name="agent")), *quick)

    assert [(one.check, one.message) for one in results] == []


def test_of_a_workflow_that_asks_for_no_reward_nothing_is_said_about_rewards() -> None:
    """The judge of the fleet gives them. Its adapter says so, and is believed only where that is so."""
    target = locate(Locator(role="workflow", name="judge"))
    silent = results_of(attrs.evolve(target, adapter=attrs.evolve(target.adapter, scoring=Scoring())))
    asking = locate(Locator(role="workflow", name="tools"))
    false = attrs.evolve(asking, adapter=attrs.evolve(asking.adapter, scoring=Scoring(asks=False)))

    assert results_of(target) == []
    assert {one.outcome for one in silent} == {Outcome.INCONCLUSIVE}
    assert len({one.message for one in silent}) == 1 and "Scoring(asks=False)" in silent[0].message
    assert [one.outcome for one in results_of(false, "workflow.reward.recorded")] == [Outcome.FAIL]


def test_what_an_adapter_says_of_scoring_must_hold() -> None:
    """Columns that it does not name, and worths that no trajectory has, are told."""
    target = locate(Locator(role="workflow", name="self_play"))
    silent = attrs.evolve(target, adapter=attrs.evolve(target.adapter, scoring=Scoring()))
    scoring = Scoring(adds=("task", "more"), worth=lambda value: (*target.adapter.scoring.worth(value), 7.0))
    boastful = attrs.evolve(target, adapter=attrs.evolve(target.adapter, scoring=scoring))
    ids = ("workflow.reward.recorded", "workflow.reward.asked_with", "workflow.company.at_once")

    for one in (silent, boastful):
        assert [result.outcome for result in results_of(one, *ids)] == [Outcome.FAIL] * 3
