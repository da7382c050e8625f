"""Trajectories, episodes and batches for tests: plain builders and hypothesis strategies.

Knows: how to make data that keeps every law of `areal_core.contract.data`.
Does not know: what is tested with it.

Builders need nothing but torch and are deterministic; strategies need hypothesis.

Example:
    trajectory = make_trajectory(num_prompt=2, num_generated=3, reward=1.0, version=4)
    batch = make_batch([(2, 3), (1, 5)], group_size=2)            # two prompts, each sampled twice
    @given(batches(max_groups=3, gaps=False))
    def test_law(batch): ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, TaskId

VOCAB_SIZE = 64
"""Ids of made tokens are below this, and at least 3: never pad, end or unknown of the tiny models."""


def make_trajectory(
    num_prompt: int = 2,
    num_generated: int = 3,
    *,
    reward: float = 1.0,
    version: int = 0,
    stop_reason: StopReason = StopReason.STOP,
    mask: Sequence[bool] | None = None,
    versions: Sequence[int] | None = None,
    token_extras: Mapping[str, Tensor] | None = None,
    sequence_extras: Mapping[str, Tensor] | None = None,
    media: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Trajectory:
    """Build one trajectory of `num_prompt` + `num_generated` tokens; ids and log-probs follow `seed`.

    Args:
        mask: which of all tokens are trained on, instead of exactly the generated ones; gives
            gaps (tool output) and masked tails.
        versions: one version per token, instead of `version` for all; read where the mask is True.
    """
    length = num_prompt + num_generated
    generator = torch.Generator().manual_seed(1000 * seed + length)
    loss_mask = torch.tensor(
        [position >= num_prompt for position in range(length)] if mask is None else list(mask), dtype=torch.bool
    )
    stamps = torch.tensor([version] * length if versions is None else list(versions), dtype=torch.int32)
    logprobs = -torch.rand(length, generator=generator) - 0.01
    return Trajectory(
        input_ids=torch.randint(3, VOCAB_SIZE, (length,), generator=generator),
        loss_mask=loss_mask,
        logprobs=torch.where(loss_mask, logprobs, torch.zeros(())),
        versions=torch.where(loss_mask, stamps, torch.tensor(-1, dtype=torch.int32)),
        reward=reward,
        stop_reason=stop_reason,
        token_extras=token_extras or {},
        sequence_extras=sequence_extras or {},
        media=media or {},
    )


def make_episode(
    *trajectories: Trajectory, group: str = "g0", task: str = "train/0/0", metrics: Mapping[str, float] | None = None
) -> Episode:
    """Wrap trajectories (one default trajectory if none is given) into an episode."""
    return Episode(
        trajectories=trajectories or (make_trajectory(),),
        task_id=TaskId(task),
        group_id=GroupId(group),
        metrics=metrics or {},
    )


def make_batch(
    shapes: Sequence[tuple[int, int]] = ((2, 3), (1, 5)),
    *,
    group_size: int = 1,
    rewards: Sequence[float] | None = None,
    version: int = 0,
    seed: int = 0,
) -> Batch:
    """Pack (num_prompt, num_generated) per prompt, each prompt sampled `group_size` times.

    Args:
        rewards: one per sequence, len(shapes) * group_size; default 1, 0, 1, 0, ...
    """
    packed: list[Episode] = []
    for prompt, (num_prompt, num_generated) in enumerate(shapes):
        for member in range(group_size):
            row = len(packed)
            trajectory = make_trajectory(
                num_prompt,
                num_generated,
                reward=float((row + 1) % 2) if rewards is None else rewards[row],
                version=version,
                seed=seed + 101 * prompt + member,
            )
            packed.append(make_episode(trajectory, group=f"g{prompt}", task=f"train/0/{prompt}"))
    return Batch.pack(packed)


def with_padding(batch: Batch) -> Batch:
    """Return the batch with id 0, with which tiny models pad, among what was given and what was generated."""
    ids = batch.tokens["input_ids"].clone()
    ids[::4] = 0
    return batch.with_tokens(input_ids=ids)


def assert_same_batch(expected: Batch, actual: Batch) -> None:
    """Fail unless both hold the same columns with the same dtypes and bits (NaN equals NaN)."""
    left, right = expected.flat(), actual.flat()
    assert left.keys() == right.keys(), f"columns differ: {sorted(left.keys() ^ right.keys())}"
    for name, column in left.items():
        other = right[name]
        assert (column.dtype, column.shape) == (other.dtype, other.shape), f"{name}: {column} is not {other}"
        assert torch.equal(_bytes(column), _bytes(other)), f"{name}: {column} is not {other}"


def _bytes(column: Tensor) -> Tensor:
    return column.detach().cpu().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


@st.composite
def trajectories(
    draw: st.DrawFn,
    *,
    min_length: int = 1,
    max_length: int = 12,
    gaps: bool = True,
    max_version: int = 9,
    extras: bool = False,
) -> Trajectory:
    """Draw a lawful trajectory of `min_length` to `max_length` tokens.

    With `gaps` any token after the first may be on or off the mask (several turns, a masked tail, nothing
    generated at all); without, a prompt is followed by at least one generated token if there is room.
    Versions differ from token to token. With `extras` it carries a token and a sequence column, and media or none.
    """
    length = draw(st.integers(min_length, max_length))
    num_prompt = min(length, draw(st.integers(1, max(length - 1, 1))))
    mask = [position >= num_prompt for position in range(length)]
    if gaps and length > 1:
        mask = [False, *draw(st.lists(st.booleans(), min_size=length - 1, max_size=length - 1))]
    seed = draw(st.integers(0, 10_000))
    rows = draw(st.integers(0, 3)) if extras else 0
    return make_trajectory(
        num_prompt,
        length - num_prompt,
        reward=draw(st.sampled_from([-1.0, 0.0, 0.25, 1.0])),
        stop_reason=draw(st.sampled_from(list(StopReason))),
        mask=mask,
        versions=draw(st.lists(st.integers(0, max_version), min_size=length, max_size=length)),
        token_extras={"routes": torch.arange(2 * length).reshape(length, 2) + seed} if extras else None,
        sequence_extras={"image": torch.full((2, 3), float(seed), dtype=torch.bfloat16)} if extras else None,
        media={"patches": torch.arange(3 * rows).reshape(rows, 3) + seed} if rows else None,
        seed=seed,
    )


@st.composite
def episodes(
    draw: st.DrawFn,
    *,
    group: str = "g0",
    max_trajectories: int = 2,
    min_length: int = 1,
    max_length: int = 12,
    gaps: bool = True,
    extras: bool = False,
) -> Episode:
    """Draw an episode of one or more trajectories, all of one group."""
    one = trajectories(min_length=min_length, max_length=max_length, gaps=gaps, extras=extras)
    return make_episode(
        *draw(st.lists(one, min_size=1, max_size=max_trajectories)), group=group, task=f"train/0/{group}"
    )


@st.composite
def episode_lists(
    draw: st.DrawFn,
    *,
    min_groups: int = 0,
    max_groups: int = 4,
    max_group_size: int = 4,
    max_trajectories: int = 2,
    min_length: int = 1,
    max_length: int = 12,
    gaps: bool = True,
    extras: bool | None = None,
) -> list[Episode]:
    """Draw episodes of several groups of different sizes, in any order (members need not be neighbours).

    `extras` None draws whether all trajectories carry extra columns.
    """
    with_extras = draw(st.booleans()) if extras is None else extras
    drawn: list[Episode] = []
    for number in range(draw(st.integers(min_groups, max_groups))):
        member = episodes(
            group=f"g{number}",
            max_trajectories=max_trajectories,
            min_length=min_length,
            max_length=max_length,
            gaps=gaps,
            extras=with_extras,
        )
        drawn += draw(st.lists(member, min_size=1, max_size=max_group_size))
    return draw(st.permutations(drawn))


def batches(**limits: Any) -> st.SearchStrategy[Batch]:
    """Draw packed batches, empty ones included; `limits` are the arguments of `episode_lists`."""
    return episode_lists(**limits).map(Batch.pack)
