"""Two roles with rewards of their own, compared with their like; and answers graded inside the fleet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_agents.workflows.per_role import PerRole
from areal_agents.workflows.self_play import PROPOSER, ROLE, SOLVER
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, EpisodeFailed, GenerationFailed
from areal_core.contract.inference import SamplingParams
from areal_core.contract.workflow import RewardInput, RewardResult

from .talking import REGISTRY, RENDERER, Talking, learned, made, whole


@pytest.mark.parametrize(("rights", "proposal"), [(0, 0.0), (1, 0.75), (2, 1.0), (3, 0.75), (4, 0.0)])
def test_a_task_is_worth_most_where_half_of_its_solvers_can_do_it(rights: int, proposal: float) -> None:
    """And a solver what its own answer is."""
    answers = [f"a{number}" for number in range(4)]
    session = Talking("task", *answers, judge=lambda value: float(int(value.completion[1]) < rights))
    episode = made("self_play", session, question="do {task} {answer}")

    proposer, *solvers = episode.trajectories
    assert (learned(proposer), proposer.reward) == ("task<|im_end|>", pytest.approx(proposal))
    assert [learned(each) for each in solvers] == [f"{answer}<|im_end|>" for answer in answers]
    assert [each.reward for each in solvers] == [float(number < rights) for number in range(4)]
    assert all("user\ndo task ba<|im_end|>" in whole(each) and "ab>" not in whole(each) for each in solvers)
    assert [int(each.sequence_extras[ROLE]) for each in episode.trajectories] == [PROPOSER, *[SOLVER] * 4]
    assert {value.prompt for value in session.scored} == {"do task ba"}
    assert {value.row["task"] for value in session.scored} == {"task"}
    assert episode.metrics["self_play/solved"] == rights / 4


def test_components_of_solvers_are_metrics_by_their_mean() -> None:
    """As with every workflow, under their own names; of those that have one."""
    session = Talking("task", "a", "b")
    told: Any = iter([{"judged": 1.0, "short": 3.0}, {"judged": 0.0}])

    async def reward(value: RewardInput) -> RewardResult:
        return RewardResult(value=1.0, components=next(told))

    session.reward = reward  # type: ignore[method-assign]
    metrics = made("self_play", session, tries=2).metrics

    assert (metrics["judged"], metrics["short"]) == (0.5, 3.0)


def test_a_solver_that_fails_fails_the_episode() -> None:
    """With its own error, the others cancelled."""
    with pytest.raises(GenerationFailed, match="lost"):
        made("self_play", Talking("task", "a", GenerationFailed("lost")))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(-2, 2, width=16)), min_size=1, max_size=12))
def test_a_role_is_compared_with_its_like_alone(rows: list[tuple[int, int, float]]) -> None:
    """Of one group: the advantages of a role sum to 0, what another role got changes none of them."""
    groups, roles, rewards = (torch.tensor(column) for column in zip(*rows, strict=True))
    columns = {"reward": rewards.float(), "group": groups, ROLE: roles}
    tokens = {"loss_mask": torch.ones(2 * len(rows), dtype=torch.bool)}
    batch = Batch.of(tokens, columns, torch.full((len(rows),), 2))
    on_last = torch.stack([torch.zeros(len(rows)), rewards], 1).flatten().double()

    found = PerRole()(batch, on_last)
    shifted = PerRole()(batch, on_last + torch.stack([torch.zeros(len(rows)), 5.0 * roles], 1).flatten().double())

    assert torch.allclose(found, shifted, atol=1e-6)
    assert torch.equal(found[::2], found[1::2]), "every token of a trajectory has its advantage"
    for group, role in {(group, role) for group, role, _ in rows}:
        inside = found[::2][(groups == group) & (roles == role)]
        assert abs(float(inside.sum())) < 1e-6
        own = rewards[(groups == group) & (roles == role)].double()
        if float(own.std(correction=0)) > 1e-3:
            assert float(inside.std(correction=0)) == pytest.approx(1.0, abs=0.1)


def test_trajectories_without_a_role_are_refused() -> None:
    """By name, with the column that is missing."""
    batch = Batch.of({"loss_mask": torch.ones(1)}, {"group": torch.zeros(1, dtype=torch.int64)}, torch.ones(1).long())
    estimator: Any = REGISTRY.build("estimator", "per_role")

    with pytest.raises(BatchError, match="'role' is missing"):
        estimator(batch, torch.zeros(1))


@pytest.mark.parametrize("adapter", ["", "critic"])
def test_an_answer_is_graded_by_who_judges(adapter: str) -> None:
    """The last score counts; only the answer is trained on."""
    session = Talking("an answer", "Score: 9? No. Score: 4")
    episode = made("judge", session, adapter=adapter, question="{prompt} {answer} {hint}: judge", scale=8.0)

    (trajectory,) = episode.trajectories
    assert (learned(trajectory), trajectory.reward) == ("an answer<|im_end|>", 0.5)
    assert session.adapters == ["", adapter] and not session.scored
    assert "user\nab> an answer {hint}: judge<|im_end|>" in str(session.tokenizer.decode(list(session.asked[1])))


def test_a_judge_without_a_score_is_asked_again_and_then_fails_the_episode() -> None:
    """It is no zero."""
    assert made("judge", Talking("x", "well", "Score: 10")).trajectories[0].reward == 1.0
    with pytest.raises(EpisodeFailed, match="gave no score"):
        made("judge", session := Talking("x", "well"), tries=2)
    assert len(session.asked) == 3


def test_a_score_may_be_below_zero() -> None:
    """The sign belongs to the number, whatever stands before it."""
    for said in ("Score: -4", "score = -4", "Score: **-4**"):
        assert made("judge", Talking("x", said)).trajectories[0].reward == -0.4


def test_a_judge_is_ended_as_the_policy_is() -> None:
    """By the tokens with which its family ends an answer."""
    used: list[SamplingParams | None] = []

    class Listening(Talking):
        async def generate(self, input_ids: Any, sampling: Any = None, **more: Any) -> Any:
            used.append(sampling)
            return await super().generate(input_ids, sampling, **more)

    session = Listening("x", "Score: 4")
    session.sampling = SamplingParams(max_new_tokens=64, stop_token_ids=(3,))
    made("judge", session)

    assert [sampling.stop_token_ids if sampling else () for sampling in used] == [
        (3, *sorted(RENDERER.stop_token_ids))
    ] * 2
