"""Scores are all of one version of the weights, or asked for again."""

from __future__ import annotations

import asyncio

import pytest

from areal_core.contract.errors import GenerationFailed
from areal_serving.scoring import scores

from .toy import other_weights, started

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_scores_that_an_update_came_between_are_asked_for_again(model):
    """What comes back is what the server said of one version, however often weights changed before."""

    async def run():
        asked = []
        async with started(model) as engine:

            async def ask(_api, version):
                asked.append(version)
                if len(asked) <= 2:
                    await engine.receive_weights(other_weights(model).offer(len(asked)), len(asked))
                    await engine.commit_weights(len(asked))
                return [0.0, -float(version)]

            return await scores(engine.running, [5, 7], 1.0, ask), asked

    found, asked = asyncio.run(run())

    assert (found, asked) == ([0.0, -2.0], [0, 1, 2])


def test_scores_that_the_server_never_ends_are_given_up(model):
    """A server that ends the request each time is no answer."""

    async def run():
        async with started(model) as engine:

            async def ask(_api, _version):
                return None

            with pytest.raises(GenerationFailed, match="interrupted too often"):
                await scores(engine.running, [5, 7], 1.0, ask)

    asyncio.run(run())
