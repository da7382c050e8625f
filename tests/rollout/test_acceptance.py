"""Dynamic sampling: groups that teach nothing are left out and others take their place, for no other reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.benches.rollouts import RolloutBench
from tests.rollout.test_episode_store import Remembered, run

from areal_algorithms.acceptance import mixed
from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Episode
from areal_core.contract.errors import RolloutError
from areal_core.contract.inference import SamplingParams
from areal_core.plugins.episodes import Fate
from areal_core.plugins.registry import default_registry
from areal_torch.testing.batches import make_episode, make_trajectory

NUM_ROWS = 20


def _number(episodes: Sequence[Episode]) -> int:
    """Return the row a group is of: its reward, here."""
    return int(episodes[0].trajectories[0].reward)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=NUM_ROWS, max_size=NUM_ROWS),
    teaching=st.sets(st.integers(0, NUM_ROWS - 1), min_size=5),
    bound=st.integers(0, 3),
    prompts=st.integers(1, 4),
)
def test_whoever_is_accepted_is_trained_however_long_it_took(
    lengths: list[int], teaching: set[int], bound: int, prompts: int
) -> None:
    """Law 2 holds, and no length is favoured: what is passed over is what was left out, nothing else."""

    async def test() -> None:
        config = RolloutConfig(
            prompts_per_step=prompts,
            group_size=2,
            max_staleness=bound,
            accept_tries=100,
            sampling=SamplingParams(max_new_tokens=64),
        )
        bench = RolloutBench(
            config,
            num_rows=NUM_ROWS,
            length=lambda request: lengths[request.input_ids[0] - 3],
            judge=lambda row, _: float(row["number"]),
            accept=lambda episodes: _number(episodes) in teaching,
        )
        batches = [await bench.step() for _ in range(6)]
        stats = bench.executor.stats()
        await bench.close()

        order = [group.task.index for groups in batches for group in groups]
        assert len(order) == len(set(order)) == 6 * prompts
        assert {index % NUM_ROWS for index in order} <= teaching
        assert max(age for groups in batches for group in groups for age in group.staleness) <= bound
        passed_over = [i for i in range(max(order)) if i % NUM_ROWS in teaching and i not in order]
        assert len(passed_over) <= bound * prompts, "each of them may still be trained in time"
        assert (stats.dropped, stats.rejected) == (0, stats.filtered)
        assert stats.admitted == stats.running + stats.buffered + stats.consumed + stats.filtered
        if bound == 0:
            assert order == [i for i in range(max(order) + 1) if i % NUM_ROWS in teaching]

    run(test)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=NUM_ROWS, max_size=NUM_ROWS),
    teaching=st.sets(st.integers(0, NUM_ROWS - 1), min_size=3),
    bound=st.integers(0, 3),
    prompts=st.integers(1, 4),
    resumed_after=st.integers(0, 4),
    waited=st.integers(0, 60),
)
@example(lengths=[1, 1, 7, *[1] * 17], teaching={*range(5)}, bound=3, prompts=1, resumed_after=3, waited=0)
def test_who_shares_a_dynamic_batch_is_not_who_was_fast_or_accepted(
    lengths: list[int], teaching: set[int], bound: int, prompts: int, resumed_after: int, waited: int
) -> None:
    """Every place of a batch is a prompt's in its turn; it is trained on or rejected there, once, also over a resume.

    So law 2 holds, each prompt is judged on its own, and a batch is small only where its prompts are left out.
    """

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(
            prompts_per_step=prompts,
            group_size=2,
            max_staleness=bound,
            accept_tries=100,
            dynamic_batch=True,
            sampling=SamplingParams(max_new_tokens=64),
        )

        def begin(state: Mapping[str, Any] | None = None) -> RolloutBench:
            return RolloutBench(
                config,
                num_rows=NUM_ROWS,
                store=store,
                state=state,
                length=lambda request: lengths[request.input_ids[0] - 3],
                judge=lambda row, _: float(row["number"]),
                accept=lambda episodes: _number(episodes) in teaching,
            )

        bench = begin()
        batches = [await bench.step() for _ in range(resumed_after)]
        await bench.clock.advance(float(waited))
        state = bench.executor.state()
        filtered = bench.executor.stats().filtered
        await bench.close()
        bench = begin(state)
        batches += [await bench.step() for _ in range(6 - resumed_after)]
        stats = bench.executor.stats()
        await bench.close()

        trained = [group.task.index for groups in batches for group in groups]
        left_out = [index for index, _, fate, _ in store.fates if fate is Fate.REJECTED]
        handled = sorted(trained + left_out)
        assert handled == sorted(set(handled)), "each prompt has one fate"
        assert {index % NUM_ROWS for index in trained} <= teaching
        assert not {index % NUM_ROWS for index in left_out} & teaching
        assert all(1 <= len(groups) <= prompts for groups in batches)
        assert len(handled) % prompts == 0, "whoever is left out has kept the place"
        made_anew = len(handled) // prompts - len(batches)  # batches of which nothing was left, at the same version
        begun_anew = bound * (0 < resumed_after < 6)  # what ran at a resume is issued again, with a deadline of its own
        ahead = (bound + begun_anew + made_anew) * prompts
        assert set(range(len(handled) - ahead)) <= set(handled), "nobody was passed over for longer"
        assert max(age for groups in batches for group in groups for age in group.staleness) <= bound
        assert filtered + stats.filtered == len(left_out) and stats.rejected == stats.filtered
        assert stats.admitted == stats.running + stats.buffered + stats.consumed + stats.filtered + stats.dropped
        if bound == 0:
            blocks = [range(first, first + prompts) for first in range(0, len(handled), prompts)]
            taught = [[index for index in block if index % NUM_ROWS in teaching] for block in blocks]
            assert [[group.task.index for group in groups] for groups in batches] == [each for each in taught if each]

    run(test)


def test_a_run_of_which_nothing_is_accepted_ends_with_the_reason() -> None:
    """After so many tries for each group that may be in flight; every one of them is an event."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=1, accept_tries=3)
        for made in (config, evolve(config, dynamic_batch=True)):
            bench = RolloutBench(made, accept=lambda _: False)

            with pytest.raises(RolloutError, match="left out 12 groups since the last batch") as caught:
                await bench.step()
            await bench.close()

            told = bench.kinds("group_rejected")
            assert len(told) >= 12 and {event["by"] for event in told} == {"accept"}
            assert "accept_tries is 3" in caught.value.why and "group_size" in caught.value.fix

    run(test)


def test_tries_are_counted_anew_for_each_batch() -> None:
    """Nine of ten groups may go for ever, if a batch comes of the tenth."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=1, group_size=2, max_staleness=0, accept_tries=10)
        bench = RolloutBench(
            config, judge=lambda row, _: float(row["number"]), accept=lambda e: _number(e) % 10 == 0, num_rows=200
        )
        for _ in range(8):
            await bench.step()
        assert bench.executor.stats().filtered >= 63
        await bench.close()

    run(test)


def test_a_function_that_raises_ends_the_run_by_its_name() -> None:
    """It is no failed episode: the next group would meet it too."""

    async def test() -> None:
        def broken(_: Sequence[Episode]) -> bool:
            raise KeyError("difficulty")

        bench = RolloutBench(RolloutConfig(prompts_per_step=1, group_size=2), accept=broken)
        with pytest.raises(RolloutError, match=r"rollout\.accept raised for group .*\n.*difficulty"):
            await bench.step()
        await bench.close()

    run(test)


def test_a_group_kept_over_a_resume_is_asked_for_again() -> None:
    """Its run may have ended before the question; what would not be trained on is not trained on now."""

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=2, retries=0)
        bench = RolloutBench(config, store=store, judge=lambda row, _: float(row["number"]))
        await bench.step()
        state = bench.executor.state()
        while bench.executor.stats().buffered < 2:
            await bench.clock.advance(1.0)
        await bench.close()

        again = RolloutBench(
            config, store=store, state=state, accept=lambda e: _number(e) >= 50, num_rows=64,
            judge=lambda row, _: float(row["number"]),
        )  # fmt: skip
        kept = again.executor.stats()
        await again.close()

        assert (kept.buffered, kept.filtered) == (0, kept.rejected) and kept.filtered >= 2
        assert sum(fate is Fate.REJECTED for _, _, fate, _ in store.fates) == kept.filtered

    run(test)


def test_mixed_takes_groups_whose_rewards_differ() -> None:
    """Registered by its name, as `rollout.accept` finds it."""
    built = default_registry().build("accept", "mixed")

    assert built is mixed
    one, other = (make_episode(make_trajectory(reward=value)) for value in (1.0, 0.5))
    assert mixed([one, other]) and not mixed([one, one]) and not mixed([one])
