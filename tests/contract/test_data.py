"""Trajectories refuse to be wrong; episodes know how old they are."""

from __future__ import annotations

import pickle

import pytest
import torch

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import ArealError, BatchError, FingerprintMismatch
from areal_core.contract.ids import GroupId, TaskId


def _columns(versions: list[int]) -> dict[str, torch.Tensor]:
    v = torch.tensor(versions, dtype=torch.int32)
    length = len(versions)
    return {
        "input_ids": torch.arange(length),
        "loss_mask": v >= 0,
        "logprobs": torch.zeros(length),
        "versions": v,
    }


def _trajectory(versions: list[int], **changes: torch.Tensor) -> Trajectory:
    return Trajectory(**{**_columns(versions), **changes}, reward=1.0, stop_reason=StopReason.STOP)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": torch.arange(3, dtype=torch.int32)}, "'input_ids' is torch.int32"),
        ({"input_ids": torch.arange(4).reshape(2, 2)}, "'input_ids'"),
        ({"logprobs": torch.zeros(2)}, "'logprobs'"),
        ({"loss_mask": torch.ones(3, dtype=torch.int64)}, "'loss_mask'"),
        ({"loss_mask": torch.ones(3, dtype=torch.bool)}, "carries no policy version"),
    ],
)
def test_a_column_of_the_wrong_shape_or_kind_is_named(changes: dict[str, torch.Tensor], message: str) -> None:
    """Before it can be packed with others."""
    with pytest.raises(BatchError, match=message):
        _trajectory([-1, 2, 3], **changes)


def test_an_extra_column_needs_one_row_per_token() -> None:
    """Misaligned extras (routed experts) are refused."""
    with pytest.raises(BatchError, match="'routes' has 2 rows for 3 tokens"):
        Trajectory(**_columns([-1, 0, 0]), reward=0.0, stop_reason="stop", token_extras={"routes": torch.zeros(2, 4)})


def test_the_age_of_an_episode_is_that_of_its_generated_tokens() -> None:
    """Prompts have no version and do not count."""
    episode = Episode(
        trajectories=(_trajectory([-1, 4, 5]), _trajectory([-1, -1, 3])), task_id=TaskId("t"), group_id=GroupId("g")
    )

    assert (episode.oldest_version, episode.newest_version) == (3, 5)


def test_an_episode_without_generated_tokens_has_no_age() -> None:
    """-1, not an error."""
    episode = Episode(trajectories=(_trajectory([-1, -1]),), task_id=TaskId("t"), group_id=GroupId("g"))

    assert (episode.oldest_version, episode.newest_version) == (-1, -1)


def test_an_error_says_what_why_fix_and_code() -> None:
    """In this order, one per line; empty parts are left out."""
    error = FingerprintMismatch("tensor 'w' arrived changed", why="sent ab, got cd", fix="check the transport")

    assert str(error).splitlines() == [
        "tensor 'w' arrived changed [AREAL-E502]",
        "  why: sent ab, got cd",
        "  fix: check the transport",
    ]
    assert str(ArealError("x")) == "x [AREAL-E000]"


def test_an_error_survives_a_copy() -> None:
    """concurrent.futures and multiprocessing copy exceptions between processes of one machine."""
    error = FingerprintMismatch("a", why="b", fix="c")

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (FingerprintMismatch, str(error))
