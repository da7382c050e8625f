"""A server that somebody else runs: used by address and key, never started or ended here."""

from __future__ import annotations

import asyncio

import pytest

from areal_core.contract.errors import GenerationFailed, PlanError, WorkerError
from areal_torch.testing.serving import ask

from .toy import beside, started
from .toy_server import fingerprints, mark_of, token


def test_an_external_server_is_used_by_address_and_key(model, monkeypatch):
    """It is asked with the key that `key_env` names, and it is left running."""
    monkeypatch.setenv("TOY_SECRET", "s3cret")

    async def run():
        async with beside(model, key="s3cret", key_env="TOY_SECRET") as (engine, toy):
            toy.auto = True
            generation = await engine.generate(ask(5, max_new_tokens=1))
            await engine.close()
            return generation, toy.mark

    generation, mark = asyncio.run(run())

    assert generation.output_ids == (token(mark, 1),)
    assert mark == mark_of(fingerprints(str(model)))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"url": "http://127.0.0.1:9"}, WorkerError),
        ({"url": "http://127.0.0.1:9", "key_env": "NOT_SET_ANYWHERE"}, PlanError),
    ],
)
def test_an_external_server_that_is_not_there_is_told_at_start(model, options, error):
    """With its address, or the name of the variable."""

    async def run():
        async with started(model, **options):
            pass

    with pytest.raises(error, match=r"127\.0\.0\.1:9|NOT_SET_ANYWHERE"):
        asyncio.run(run())


def test_an_external_server_that_is_gone_is_not_started_again(model):
    """Requests fail typed, at once."""

    async def run():
        async with beside(model) as (engine, _):
            await engine.misbehave("generate", "drop")
            await engine.misbehave("health", "503", times=2)
            with pytest.raises(GenerationFailed, match="does not answer as expected"):
                await engine.generate(ask(5))
            with pytest.raises(GenerationFailed):
                await engine.generate(ask(5))

    asyncio.run(run())
