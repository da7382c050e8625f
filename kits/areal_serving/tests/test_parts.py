"""An interrupted request goes on as one: stop strings, minimum length, seeds; and what replies must be."""

from __future__ import annotations

import asyncio

import pytest

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import Timings, VersionSpan
from areal_serving.calls import seed_of_part
from areal_serving.dialect import Reply
from areal_serving.outputs import cut_at_stop, generation_of
from areal_torch.testing.serving import ask

from .toy import beside

A, B, C, D = 3, 4, 5, 6
"""Token ids of the letters a to d in tiny models."""


def reply(*ids, finish="length", versions=None):
    """Return a reply with one span per token."""
    spans = [VersionSpan(start=n, stop=n + 1, version=v) for n, v in enumerate(versions or [0] * len(ids))]
    return Reply(output_ids=ids, logprobs=[-1.0] * len(ids), spans=spans, finish=finish, token_extras={"x": list(ids)})


@pytest.mark.parametrize(
    ("prompt", "prior", "output", "minimum", "expected"),
    [
        ((C,), 0, (A, B, C, D), 0, 3),
        ((C, A, B), 2, (C, D), 0, 1),
        ((A, B), 0, (C, D), 0, 2),
        ((C, A, B), 2, (C, D, A, B, C), 4, 5),
        ((C, A, B, C), 3, (D, D), 0, 2),
    ],
)
def test_a_stop_string_ends_the_output_at_its_last_token_also_over_parts(
    model, prompt, prior, output, minimum, expected
):
    """Tokens of earlier parts count, those of the prompt do not, nor what completes before the minimum length."""
    request = ask(*prompt, num_prior=prior, stop=["abc"], min_new_tokens=minimum)

    cut = cut_at_stop(reply(*output), request, model)

    assert output[:expected] == cut.output_ids
    assert len(cut.logprobs) == len(cut.token_extras["x"]) == cut.spans[-1].stop == expected


def test_a_cut_output_has_the_reason_and_versions_of_what_is_left(model):
    """Also when the server gave it up or ran out of budget behind it."""
    whole = reply(A, B, C, D, finish="abort", versions=[1, 1, 2, 3])

    generation = generation_of(cut_at_stop(whole, ask(C, stop=["bc"]), model), Timings())

    assert StopReason.STOP is generation.stop_reason
    assert [(s.start, s.stop, s.version) for s in generation.version_spans] == [(0, 2, 1), (2, 3, 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        Reply(output_ids=[A, B], logprobs=[-1.0], spans=[VersionSpan(start=0, stop=2, version=0)], finish="stop"),
        Reply(output_ids=[A], logprobs=[-1.0], spans=[], finish="stop"),
        reply(A, finish="tired"),
    ],
)
def test_a_reply_that_does_not_fit_itself_is_a_failure_not_a_sample(wrong):
    """Counts that differ, and reasons nobody knows."""
    with pytest.raises(GenerationFailed):
        generation_of(wrong, Timings())


def test_each_part_has_its_own_seed_and_the_same_every_time():
    """A continued request must not draw its first numbers again; without a seed there is none."""
    seeds = [seed_of_part(7, prior) for prior in (0, 1, 2, 100)]

    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [seed_of_part(7, prior) for prior in (0, 1, 2, 100)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of_part(None, 5) is None


def test_a_continued_request_asks_for_what_is_left(model):
    """Minimum length less what there is, end tokens of the model unless ignored, the seed of the part."""

    async def run():
        async with beside(model) as (engine, toy):
            sampling = {"max_new_tokens": 9, "min_new_tokens": 5, "seed": 7, "stop_token_ids": (8,)}
            request = ask(5, 9, 9, num_prior=2, **sampling)
            call = asyncio.ensure_future(engine.generate(request))
            ignoring = asyncio.ensure_future(engine.generate(ask(5, **sampling, ignore_eos=True)))
            await engine.until_in_server(2)
            bodies = [mine.body for mine in toy.requests.values()]
            call.cancel()
            ignoring.cancel()
            return sorted(bodies, key=lambda body: -len(body["ids"]))

    first, second = asyncio.run(run())

    assert (9, 3, [1, 8], seed_of_part(7, 2)) == tuple(
        first[k] for k in ("max_tokens", "min_tokens", "end_ids", "seed")
    )
    assert tuple(second[k] for k in ("max_tokens", "min_tokens", "end_ids", "seed")) == (9, 5, [8], 7)
