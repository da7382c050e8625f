"""The preference losses are those of their papers, and a step on their slopes is a step on them, however it is cut."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.train import Output
from areal_supervised.config import DPOConfig, IPOConfig, RewardModelConfig
from areal_supervised.linear import LinearConfig, LinearObjective
from areal_supervised.preference import Formula, compare, dpo, ipo, reward_model

Pair = tuple[list[float], list[float]]


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def dpo_of(better: Pair, worse: Pair, beta: float, smoothing: float) -> float:
    """The paper's equation, a pair at a time: sums over tokens of policy and reference log-probs."""
    ratio = [sum(policy) - sum(reference) for policy, reference in (better, worse)]
    h = beta * (ratio[0] - ratio[1])
    return -(1 - smoothing) * math.log(sigmoid(h)) - smoothing * math.log(sigmoid(-h))


def ipo_of(better: Pair, worse: Pair, beta: float) -> float:
    ratio = [(sum(policy) - sum(reference)) / len(policy) for policy, reference in (better, worse)]
    return (ratio[0] - ratio[1] - 1 / (2 * beta)) ** 2


def reward_of(better: Pair, worse: Pair, center: float) -> float:
    one, other = better[0][0], worse[0][0]
    return -math.log(sigmoid(one - other)) + center * (one + other) ** 2


CASES: dict[str, tuple[Formula, Callable[[Pair, Pair], float], bool]] = {
    "dpo": (dpo(DPOConfig(beta=0.3)), lambda a, b: dpo_of(a, b, 0.3, 0.0), True),
    "dpo, smoothed": (
        dpo(DPOConfig(beta=0.3, label_smoothing=0.2)),
        lambda a, b: dpo_of(a, b, 0.3, 0.2),
        True,
    ),
    "ipo": (ipo(IPOConfig(beta=0.4)), lambda a, b: ipo_of(a, b, 0.4), True),
    "reward model": (
        reward_model(RewardModelConfig(center_coefficient=0.05)),
        lambda a, b: reward_of(a, b, 0.05),
        False,
    ),
}
numbers = st.floats(-3, 3, width=32)


@st.composite
def pairs(draw: st.DrawFn, one: bool) -> list[tuple[Pair, Pair]]:
    """Return columns of the policy and of the reference, of one learned token or several per answer."""

    def answer() -> Pair:
        length = 1 if one else draw(st.integers(1, 4))
        values = st.lists(numbers, min_size=length, max_size=length)
        return draw(values), ([0.0] * length if one else draw(values))

    return [(answer(), answer()) for _ in range(draw(st.integers(1, 4)))]


def packed(cases: list[tuple[Pair, Pair]]) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """Return a batch with two tokens of prompt before each answer, and both columns."""
    episodes, x, reference = [], list[float](), list[float]()
    for number, answers in enumerate(cases):
        trajectories = []
        for policy, other in answers:
            length = len(policy) + 2
            mask = torch.arange(length) >= 2
            trajectories.append(
                Trajectory(
                    input_ids=torch.arange(length),
                    loss_mask=mask,
                    logprobs=torch.zeros(length),
                    versions=torch.where(mask, 0, -1).to(torch.int32),
                    reward=0.0,
                    stop_reason=StopReason.STOP,
                )
            )
            x += [7.0, 7.0, *policy]  # off the mask it counts for nothing
            reference += [-5.0, 3.0, *other]
        episodes.append(
            Episode(trajectories=tuple(trajectories), task_id=TaskId(f"t/{number}"), group_id=GroupId(f"g{number}"))
        )
    return Batch.pack(episodes), torch.tensor(x), torch.tensor(reference)


def stepped(batch: Batch, x: torch.Tensor, parts: list[list[int]]) -> tuple[float, torch.Tensor]:
    """Return loss and gradient as an engine computes them that cuts the batch into these parts."""
    objective = LinearObjective(LinearConfig())
    x = x.double().requires_grad_()
    starts = batch.cu_seqlens.tolist()
    whole, loss = objective.normalizer(batch), torch.zeros((), dtype=torch.float64)
    for rows in parts:
        places = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])
        loss = loss + objective.loss({Output.LOGPROBS: x[places]}, batch.select(rows), whole)[0]
    loss.backward()
    assert x.grad is not None
    return float(loss.detach()), x.grad


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=60)
def test_loss_and_slopes_are_those_of_a_plain_loop_however_the_batch_is_cut(name: str, data: st.DataObject) -> None:
    formula, plain, compares = CASES[name]
    cases = data.draw(pairs(one=not compares))
    batch, x, reference = packed(cases)
    marked, told = compare(batch, x, reference if compares else None, formula)
    order = data.draw(st.permutations(range(batch.num_sequences)))
    cut = data.draw(st.integers(0, batch.num_sequences))

    loss, gradient = stepped(marked, x, [list(part) for part in (order[:cut], order[cut:]) if part])

    expected = sum(plain(*case) for case in cases) / len(cases)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert told["loss"].value / told["loss"].weight == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert told["accuracy"].weight == len(cases)
    for place in batch.tokens["loss_mask"].nonzero().flatten().tolist():
        assert float(gradient[place]) == pytest.approx(_difference(cases, plain, batch, place), rel=2e-3, abs=2e-4)
    assert not gradient[~batch.tokens["loss_mask"]].any()


def _difference(
    cases: list[tuple[Pair, Pair]], plain: Callable[[Pair, Pair], float], batch: Batch, place: int
) -> float:
    """Return the central difference of the plain loss by one token of the policy."""
    row = int(batch.sequence_ids[place])
    token = place - int(batch.cu_seqlens[row]) - 2
    found = []
    for step in (1e-5, -1e-5):
        moved = [tuple(tuple(list(column) for column in answer) for answer in case) for case in cases]
        moved[row // 2][row % 2][0][token] += step
        found.append(sum(plain(*case) for case in moved) / len(cases))  # type: ignore[arg-type]
    return (found[0] - found[1]) / 2e-5


def test_scores_tell_which_answer_is_preferred() -> None:
    """The better answer gained 2 nats over the reference, the worse one lost 1: margin 3 beta."""
    batch, x, reference = packed([(([-1.0], [-3.0]), ([-4.0], [-3.0]))])

    _, told = compare(batch, x, reference, dpo(DPOConfig(beta=0.5)))

    means = {name: each.value / each.weight for name, each in told.items()}
    assert means == pytest.approx(
        {
            "loss": -math.log(sigmoid(1.5)),
            "accuracy": 1.0,
            "margin": 1.5,
            "score_chosen": 1.0,
            "score_rejected": -0.5,
        }
    )
