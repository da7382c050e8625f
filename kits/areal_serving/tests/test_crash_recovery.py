"""Servers that crash or hang, with real processes: restarted with their weights and version, and no answer is lost."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from areal_core.contract.errors import GenerationFailed, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_torch.testing.serving import ask

from .toy import ToyDialect, ask_many, kill_server, other_weights, restarts, started


def test_a_crash_while_busy_costs_no_answer_and_keeps_weights_and_version(model):
    """Callers get whole answers from the next server, computed by the version the one that died had."""

    async def run():
        dialect = ToyDialect()
        async with started(model, dialect, concurrent=2) as engine:
            new = other_weights(model)
            await engine.receive_weights(new.offer(4), 4)
            await engine.commit_weights(4)
            calls = ask_many(engine, [ask(5, n, max_new_tokens=6) for n in (2, 3, 4)])
            await engine.until_in_server(2)
            await engine.step(3)
            before = (await engine.status()).tokens_generated
            dialect.arguments.append("--auto")
            await kill_server(engine)
            generations = await asyncio.gather(*calls)
            return generations, before, await engine.status(), await engine.story(), dialect.launches

    generations, before, status, story, launches = asyncio.run(run())

    assert [len(g.output_ids) for g in generations] == [6, 6, 6]
    assert {4} == {span.version for g in generations for span in g.version_spans}
    assert (status.version, status.metrics["num_restarts"], status.paused) == (4, 1.0, False)
    assert before == 6
    assert status.tokens_generated >= 6 + 18
    assert story[:3] == ["pause keep", "load 4", "resume"]
    assert len({launch.key for launch in launches}) == 2


@pytest.mark.parametrize("mode", list(PauseMode))
def test_a_crash_while_paused_comes_back_paused(model, mode):
    """The next server computes nothing before `resume`; a request that was frozen is then computed."""

    async def run():
        async with started(model) as engine:
            call = asyncio.ensure_future(engine.generate(ask(5, max_new_tokens=2)))
            await engine.until_in_server(1)
            await engine.pause(mode)
            await kill_server(engine)
            await engine.until(lambda: restarts(engine) == 1)
            if mode is PauseMode.KEEP:
                await engine.until_in_server(1)
            await engine.step(5)
            status, story = await engine.status(), await engine.story()
            await engine.resume()
            await engine.step(5)
            return status, story, await call

    status, story, generation = asyncio.run(run())

    assert (status.paused, status.tokens_generated) == (True, 0)
    assert story[0] == f"pause {mode.value}"
    assert len(generation.output_ids) == (2 if mode is PauseMode.KEEP else 0)


def test_an_idle_crash_is_seen_without_anybody_asking(model):
    """The server is back before the next request comes."""

    async def run():
        async with started(model) as engine:
            await kill_server(engine)
            await engine.until(lambda: restarts(engine) == 1)
            await engine.running.server.api()
            return await engine.status()

    assert asyncio.run(run()).metrics["num_restarts"] == 1


@pytest.mark.parametrize(("route", "how"), [("load", "die"), ("load", "500"), ("pause", "die"), ("resume", "die")])
def test_a_server_lost_within_a_commit_is_replaced_and_the_commit_done(model, route, how):
    """Nobody knows what a server holds that failed midway: the next one loads the old weights, then the new."""

    async def run():
        async with started(model) as engine:
            await engine.receive_weights(other_weights(model).offer(1), 1)
            await engine.commit_weights(1)
            await engine.receive_weights(other_weights(model, 2.0).offer(2), 2)
            call = asyncio.ensure_future(engine.generate(ask(5, 9, max_new_tokens=2)))
            await engine.until_in_server(1)
            engine.toy.arguments.append("--auto")
            await engine.misbehave(route, how)
            await engine.commit_weights(2)
            generation = await engine.generate(ask(6, 6, max_new_tokens=2))
            return generation, await call, (await engine.status()).version, await engine.story()

    generation, first, version, story = asyncio.run(run())

    assert (2, {2}) == (version, {span.version for span in generation.version_spans})
    assert len(first.output_ids) == 2
    loads = [entry for entry in story if entry.startswith("load")]
    assert loads == (["load 2"] if route == "resume" else ["load 1", "load 2"])


def test_a_version_no_server_loads_leaves_the_one_before(model):
    """WeightSyncError; the server that failed is replaced, version and weights still agree, requests go on."""

    class Unloadable(ToyDialect):
        async def load(self, api, folder, version, *, keep_cache):
            if version == 2:
                raise WeightSyncError("this version is cursed")
            await super().load(api, folder, version, keep_cache=keep_cache)

    async def run():
        async with started(model, Unloadable(["--auto"])) as engine:
            await engine.receive_weights(other_weights(model).offer(1), 1)
            await engine.commit_weights(1)
            await engine.receive_weights(other_weights(model, 2.0).offer(2), 2)
            with pytest.raises(WeightSyncError, match="cursed"):
                await engine.commit_weights(2)
            await engine.abort_weights()
            generation = await engine.generate(ask(5, 9, max_new_tokens=1))
            return generation, (await engine.status()).version, restarts(engine)

    generation, version, count = asyncio.run(run())

    assert (version, [span.version for span in generation.version_spans], count) == (1, [1], 2)


def test_a_receive_outlives_the_server_that_proves(model):
    """The next server is asked."""

    async def run():
        async with started(model) as engine:
            await engine.misbehave("prove", "die")
            await engine.receive_weights(other_weights(model).offer(1), 1)
            await engine.commit_weights(1)
            return (await engine.status()).version, restarts(engine)

    assert asyncio.run(run()) == (1, 1)


@pytest.mark.usefixtures("nothing_left")
def test_the_budget_of_restarts_ends_in_typed_errors(model):
    """Also one that dies while it starts costs a try; then everybody who waits is told, with its last words."""

    async def run():
        dialect = ToyDialect()
        async with started(model, dialect, concurrent=1, max_restarts=2) as engine:
            calls = ask_many(engine, [ask(5, n) for n in (2, 3)])
            await engine.until_in_server(1)
            dialect.arguments += ["--fail", "out of memory"]
            await kill_server(engine)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for call in (engine.generate(ask(5)), engine.pause(PauseMode.KEEP), engine.resume()):
                with pytest.raises(GenerationFailed):
                    await call
            return outcomes, (await engine.status()).metrics["num_restarts"], len(dialect.launches)

    outcomes, count, launches = asyncio.run(run())

    assert [GenerationFailed] * 2 == [type(outcome) for outcome in outcomes]
    assert "out of memory" in str(outcomes[0])
    assert (count, launches) == (2, 3)


@pytest.mark.parametrize("how", ["computes nothing", "stopped"])
def test_a_server_that_hangs_is_killed_and_started_again(model, how):
    """One that has requests and makes no token, and one that does not answer at all; callers get whole answers."""

    async def run():
        dialect = ToyDialect()
        async with started(model, dialect, hang_timeout_s=1.0) as engine:
            dialect.arguments.append("--auto")
            if how == "stopped":
                os.kill((await engine.facts())["pid"], signal.SIGSTOP)
            return await engine.generate(ask(5, max_new_tokens=4)), restarts(engine)

    generation, count = asyncio.run(run())

    assert (len(generation.output_ids), count) == (4, 1)


def test_neither_idle_nor_paused_nor_slow_is_a_hang(model):
    """Many times the hang timeout passes, by the watch's own clock."""

    async def run():
        async with started(model, hang_timeout_s=5.0) as engine:
            looks = engine.looks

            async def passes():
                start = looks.now()
                await engine.until(lambda: looks.now() > start + 12.0)

            await passes()
            call = asyncio.ensure_future(engine.generate(ask(5, max_new_tokens=100)))
            await engine.until_in_server(1)
            await engine.pause(PauseMode.KEEP)
            await passes()
            await engine.resume()
            start = looks.now()
            while looks.now() < start + 12.0:
                await engine.step()
            call.cancel()
            return restarts(engine)

    assert asyncio.run(run()) == 0
