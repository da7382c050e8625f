"""The proximal policy's three sources, and the staleness of each token."""

from __future__ import annotations

import pytest
import torch

from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_algorithms.proximal import add_proximal
from areal_core.algorithms.config import AlgorithmConfig, Proximal
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError

from .cases import packed

LOGLINEAR = AlgorithmConfig(proximal=Proximal.LOGLINEAR)


def _versions(masks: list[list[int]], versions: list[int]) -> Batch:
    return packed(masks, versions=torch.tensor(versions, dtype=torch.int32))


def test_only_recompute_needs_a_forward_pass() -> None:
    """The loop asks before it spends one."""
    actual = {source: AlgorithmConfig(proximal=source).needs_forward for source in Proximal}

    assert actual == {Proximal.BEHAVIOUR: False, Proximal.RECOMPUTE: True, Proximal.LOGLINEAR: False}


def test_published_value_of_the_loglinear_policy() -> None:
    """Behaviour -1, policy -3, sampled at version 3, now at 5: half way, -2, so the ratio is exp(-1)."""
    batch = packed([[1]], logprobs=[-1.0], versions=torch.tensor([3], dtype=torch.int32), advantages=[1.0])
    batch = add_proximal(batch, LOGLINEAR, version=5)
    objective = PPOObjective(PPOConfig(proximal=Proximal.LOGLINEAR, clip_low=0.9))

    loss, metrics = objective.loss({"logprobs": torch.tensor([-3.0])}, batch, objective.normalizer(batch))

    assert batch.tokens["proximal_alpha"].tolist() == [0.5]
    assert pytest.approx(float(loss), abs=1e-5) == -0.36788
    assert pytest.approx(metrics["importance_weight"].value, abs=1e-5) == 0.36788


def test_v1_each_token_is_interpolated_by_its_own_version() -> None:
    """The first and the last generated token of a turn have their own staleness, prompts have none."""
    batch = _versions([[0, 1, 1, 1], [0, 1]], [-1, 2, 4, 5, -1, 1])

    actual = add_proximal(batch, LOGLINEAR, version=6).tokens["proximal_alpha"].tolist()

    assert pytest.approx(actual) == [0.0, 1 - 1 / 4, 1 - 1 / 2, 0.0, 0.0, 1 - 1 / 5]


def test_a_fresh_token_is_its_own_centre() -> None:
    """A token of the current version, or one step old, keeps the behaviour log-prob."""
    actual = add_proximal(_versions([[1, 1]], [7, 6]), LOGLINEAR, version=7).tokens["proximal_alpha"].tolist()

    assert actual == [0.0, 0.0]


def test_behaviour_is_a_copy_and_recompute_is_what_was_given() -> None:
    """Neither touches the sampling log-probs."""
    batch = packed([[0, 1]], logprobs=[0.0, -1.0])

    copied = add_proximal(batch, AlgorithmConfig(), version=1)
    given = add_proximal(batch, AlgorithmConfig(proximal=Proximal.RECOMPUTE), 1, torch.tensor([-9.0, -2.0]))

    assert copied.tokens["proximal_logprobs"].tolist() == [0.0, -1.0]
    assert copied.tokens["proximal_logprobs"].data_ptr() != batch.tokens["logprobs"].data_ptr()
    assert given.tokens["proximal_logprobs"].tolist() == [0.0, -2.0]


@pytest.mark.parametrize("given", [None, torch.zeros(3)], ids=["missing", "another length"])
def test_recompute_without_its_forward_pass_is_refused(given: torch.Tensor | None) -> None:
    """It never falls back to another source in silence."""
    with pytest.raises(BatchError, match="forward_logprobs"):
        add_proximal(packed([[0, 1]]), AlgorithmConfig(proximal=Proximal.RECOMPUTE), 1, given)
