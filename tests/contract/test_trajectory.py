"""What an engine generated becomes training data token by token, with nothing shifted or invented."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError
from areal_core.contract.inference import Generation, VersionSpan
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.contract.trajectory import NO_VERSION, TrajectoryBuilder, from_generation


def generation_of(
    ids: list[int],
    versions: list[int] | None = None,
    stop_reason: StopReason = StopReason.STOP,
    extras: dict[str, torch.Tensor] | None = None,
) -> Generation:
    """Make a generation whose token at place i has log-prob -(i + 1) / 8 and one span per run of equal versions."""
    stamps = versions if versions is not None else [0] * len(ids)
    spans: list[VersionSpan] = []
    for place, version in enumerate(stamps):
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(start=spans[-1].start, stop=place + 1, version=version)
        else:
            spans.append(VersionSpan(start=place, stop=place + 1, version=version))
    return Generation(
        output_ids=tuple(ids),
        logprobs=tuple(-(place + 1) / 8 for place in range(len(ids))),
        version_spans=tuple(spans),
        stop_reason=stop_reason,
        token_extras=extras or {},
    )


def test_one_generation_becomes_one_trajectory() -> None:
    """Ids as they are; mask, log-probs and versions on exactly the generated tokens."""
    generation = generation_of([4, 7, 1], versions=[3, 4, 4], stop_reason=StopReason.LENGTH)

    trajectory = from_generation([5, 9], generation, reward=0.5)

    assert trajectory.input_ids.tolist() == [5, 9, 4, 7, 1]
    assert trajectory.loss_mask.tolist() == [False, False, True, True, True]
    assert trajectory.logprobs.tolist() == [0.0, 0.0, -0.125, -0.25, -0.375]
    assert trajectory.versions.tolist() == [-1, -1, 3, 4, 4]
    assert (trajectory.reward, trajectory.stop_reason) == (0.5, StopReason.LENGTH)


def test_a_builder_that_goes_on_changes_nothing_it_built() -> None:
    """Branches of a conversation share their beginning."""
    builder = TrajectoryBuilder([5])
    builder.add_generation(generation_of([4]))
    first = builder.build(0.0)
    builder.add_generation(generation_of([7, 8]))

    assert first.input_ids.tolist() == [5, 4] and builder.build(0.0).input_ids.tolist() == [5, 4, 7, 8]


def test_nothing_given_and_nothing_generated_is_a_trajectory_without_tokens() -> None:
    """Its columns have their types."""
    trajectory = from_generation([], generation_of([]), reward=0.0)

    columns = (trajectory.input_ids, trajectory.loss_mask, trajectory.logprobs, trajectory.versions)
    assert [column.dtype for column in columns] == [torch.int64, torch.bool, torch.float32, torch.int32]
    assert len(trajectory) == 0


def test_an_id_that_is_no_whole_number_is_refused() -> None:
    """It is never cut to one."""
    with pytest.raises(TypeError):
        TrajectoryBuilder([5, 1.5])  # type: ignore[list-item]


segments = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 63), min_size=1, max_size=5), st.booleans()), max_size=6
)


@given(segments)
def test_turns_are_kept_in_order_and_only_trained_ones_are_on_the_mask(
    turns: list[tuple[bool, list[int], bool]],
) -> None:
    """Any mix of environment, generated and context-only segments gives their tokens end to end."""
    builder = TrajectoryBuilder([2, 3])
    expected = [(2, False), (3, False)]
    for number, (generated, ids, train) in enumerate(turns):
        if generated:
            builder.add_generation(generation_of(ids, versions=[number] * len(ids)), train=train)
        else:
            builder.add_environment(ids)
        expected += [(token, generated and train) for token in ids]
    builder.add_generation(generation_of([1], versions=[99], stop_reason=StopReason.TOOL_CALLS))

    trajectory = builder.build(1.0)

    ids, mask = zip(*expected, (1, True), strict=True)
    assert builder.input_ids == ids == tuple(trajectory.input_ids.tolist())
    assert mask == tuple(trajectory.loss_mask.tolist())
    assert torch.equal(trajectory.versions >= 0, trajectory.loss_mask), "versions are -1 exactly off the mask"
    assert torch.equal(trajectory.logprobs < 0, trajectory.loss_mask), "log-probs are 0 exactly off the mask"
    assert trajectory.stop_reason is StopReason.TOOL_CALLS, "the last generation's"


def test_token_columns_line_up_with_the_generations_that_brought_them() -> None:
    """Routed experts of two turns sit on those turns' tokens, zero elsewhere, dtype kept."""
    builder = TrajectoryBuilder([5])
    builder.add_generation(generation_of([6, 7], extras={"experts": torch.tensor([[1, 2], [3, 4]], dtype=torch.int16)}))
    builder.add_environment([8])
    builder.add_generation(generation_of([9], extras={"experts": torch.tensor([[5, 6]], dtype=torch.int16)}))

    column = builder.build(0.0).token_extras["experts"]

    assert column.dtype == torch.int16
    assert column.tolist() == [[0, 0], [1, 2], [3, 4], [0, 0], [5, 6]]


def test_experts_that_were_not_recorded_are_minus_one() -> None:
    """Expert 0 is an expert: tokens nobody recorded must not be replayed through it."""
    builder = TrajectoryBuilder([5])
    routed = torch.tensor([[[1]], [[2]]], dtype=torch.int32)
    builder.add_generation(generation_of([6, 7], extras={ROUTED_EXPERTS: routed}))
    builder.add_environment([8])

    column = builder.build(0.0).token_extras[ROUTED_EXPERTS]

    assert (column.dtype, column.flatten().tolist()) == (torch.int32, [-1, 1, 2, -1])


BAD_SPANS = {
    "gap": [(0, 1, 3), (2, 3, 3)],
    "overlap": [(0, 2, 3), (1, 3, 3)],
    "gap and overlap": [(0, 2, 3), (1, 2, 3)],
    "shifted": [(1, 4, 3)],
    "short": [(0, 2, 3)],
    "long": [(0, 4, 3)],
    "missing": [],
    "empty span": [(0, 0, 3), (0, 3, 3)],
    "going back": [(0, 2, 3), (2, 3, 2)],
    "negative": [(0, 3, -2)],
}


@pytest.mark.parametrize("spans", BAD_SPANS.values(), ids=BAD_SPANS.keys())
def test_version_spans_must_cover_the_output(spans: list[tuple[int, int, int]]) -> None:
    """A token whose version is unknown cannot be trained on: staleness would be a guess."""
    generation = Generation(
        output_ids=(4, 7, 1),
        logprobs=(-0.1, -0.2, -0.3),
        version_spans=tuple(VersionSpan(start=a, stop=b, version=v) for a, b, v in spans),
        stop_reason=StopReason.STOP,
    )

    with pytest.raises(BatchError, match="version span"):
        from_generation([5], generation, 1.0)


def test_what_no_version_of_the_policy_made_is_context_and_never_trained_on() -> None:
    """An adapter's tokens come with version -1: taken as context they have no columns, trained on they are refused."""
    adapters = Generation(
        output_ids=(4, 7),
        logprobs=(-0.1, -0.2),
        version_spans=(VersionSpan(start=0, stop=2, version=NO_VERSION),),
        stop_reason=StopReason.STOP,
    )
    turns = TrajectoryBuilder([5])
    turns.add_generation(adapters, train=False)
    turns.add_generation(generation_of([6]))
    made = turns.build(1.0)

    assert made.loss_mask.tolist() == [False, False, False, True]
    assert made.versions.tolist()[:3] == [NO_VERSION] * 3 and not made.logprobs[:3].any()
    with pytest.raises(BatchError, match="carries no policy version") as refused:
        from_generation([5], adapters, 1.0)
    assert "train=False" in refused.value.fix
    spans = (VersionSpan(start=0, stop=1, version=NO_VERSION), VersionSpan(start=1, stop=2, version=0))
    mixed = evolve(adapters, version_spans=spans)
    with pytest.raises(BatchError, match="carries no policy version"):
        from_generation([5], mixed, 1.0)


@pytest.mark.parametrize("logprobs", [(), (-0.1,), (-0.1, -0.1, -0.1), (-0.1, float("nan")), (-0.1, float("-inf"))])
def test_every_generated_token_needs_a_finite_logprob(logprobs: tuple[float, ...]) -> None:
    """Missing, surplus and non-finite log-probs are refused, not padded."""
    generation = Generation(
        output_ids=(4, 7),
        logprobs=logprobs,
        version_spans=(VersionSpan(start=0, stop=2, version=0),),
        stop_reason=StopReason.STOP,
    )

    with pytest.raises(BatchError, match="log-prob"):
        from_generation([5], generation, 1.0)


def test_a_trajectory_needs_a_generation_and_a_finite_reward() -> None:
    """Environment tokens alone have no stop reason; NaN is no reward."""
    with pytest.raises(BatchError, match="holds no generation"):
        TrajectoryBuilder([5]).build(1.0)
    with pytest.raises(BatchError, match="reward is nan"):
        from_generation([5], generation_of([1]), float("nan"))


def test_images_are_carried_in_the_order_of_the_turns() -> None:
    """Those of the prompt, then those of an answer between two turns; each turn is asked with those so far."""
    turns = TrajectoryBuilder([5, 66], [b"one"])
    turns.add_generation(generation_of([4]))
    assert turns.images == (b"one",)
    turns.add_environment([66, 9, 66], images=[b"two", b"one"])
    turns.add_generation(generation_of([7]))

    assert turns.images == turns.build(reward=0.0).images == (b"one", b"two", b"one")
    assert from_generation([66], generation_of([7]), 0.0, images=[b"one"]).images == (b"one",)
    assert from_generation([5], generation_of([7]), 0.0).images == ()
