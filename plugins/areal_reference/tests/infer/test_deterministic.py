"""Deterministic mode: the same request gives the same bits, whatever else runs."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from areal_core.contract.inference import PauseMode
from areal_reference.infer.runner import largest_invariant_tile
from areal_torch.testing.serving import ask, until_generated

PROMPTS = [(5,), (5, 9, 7), (5, 9, 7, 8), (11, 12, 13, 14, 15, 16, 17, 18, 19), (6,) * 61, (7,) * 70]
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 9, "min_new_tokens": 5},
]


def request(prompt, sampling, length):
    """Return one of the requests under test; its seed is a function of what it is."""
    seed = prompt * 100 + sampling
    return ask(*PROMPTS[prompt], seed=seed, max_new_tokens=length, **SAMPLING[sampling])


kinds = st.tuples(st.integers(0, len(PROMPTS) - 1), st.integers(0, len(SAMPLING) - 1))
loads = st.lists(st.tuples(kinds, st.integers(1, 14), st.integers(0, 3)), min_size=1, max_size=45)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_tokens_and_logprobs_are_the_same_bits_under_any_load(kind, serve, model_folder):
    """Requests that come, go and are cancelled at random change no bit of each other's log-probs."""
    folder = model_folder(kind)
    alone = {}

    async def solo():
        async with serve(folder, config={"deterministic": True}) as engine:
            for prompt in range(len(PROMPTS)):
                for sampling in range(len(SAMPLING)):
                    alone[prompt, sampling] = await engine.generate(request(prompt, sampling, 14))

    async def crowd(load):
        async def late(engine, kind, length, delay):
            for _ in range(delay * 20):
                await asyncio.sleep(0)
            return await engine.generate(request(*kind, length))

        async with serve(folder, config={"deterministic": True}, max_concurrent=37) as engine:
            tasks = [asyncio.ensure_future(late(engine, *item)) for item in load]
            for task in tasks[5::7]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(solo())

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(loads)
    def check(load):
        for (key, length, _), outcome in zip(load, asyncio.run(crowd(load)), strict=True):
            if not isinstance(outcome, BaseException):
                assert outcome.output_ids == alone[key].output_ids[:length]
                assert outcome.logprobs == alone[key].logprobs[:length]

    check()


def test_an_interrupted_request_continues_with_the_same_bits(serve, model_folder):
    """Aborted at any point and continued, tokens and log-probs equal those of an undisturbed run."""
    options = {"seed": 4, "temperature": 0.9, "ignore_eos": True}

    async def run():
        async with serve(model_folder(max_position=4096), config={"deterministic": True}) as engine:
            whole = await engine.generate(ask(5, 9, 7, max_new_tokens=60, **options))
            ids, logprobs = (), ()
            while len(ids) < 60:
                budget = {"max_new_tokens": 3500, "num_prior": len(ids)}
                call = asyncio.ensure_future(engine.generate(ask(5, 9, 7, *ids, **budget, **options)))
                await until_generated(engine, 17)
                await engine.pause(PauseMode.ABORT)
                part = await call
                await engine.resume()
                ids, logprobs = ids + part.output_ids, logprobs + part.logprobs
            return whole, ids[:60], logprobs[:60]

    whole, ids, logprobs = asyncio.run(run())
    assert ids == whole.output_ids
    assert logprobs == whole.logprobs


def test_a_tile_that_feels_places_is_not_taken():
    """The largest tile whose rows are the same bits wherever they stand wins; one row needs no proof."""

    def run(tile, shift):
        return torch.arange(tile) + (torch.arange(tile) == 3) * (shift == 1) * (tile > 8)

    assert largest_invariant_tile(run, (32, 16, 8)) == 8
    assert largest_invariant_tile(lambda tile, shift: torch.full((tile,), shift), (32, 8)) == 1
