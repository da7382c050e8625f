"""Starting and closing a server's engine, with real processes: every way to end leaves nothing behind."""

from __future__ import annotations

import asyncio
import os

import psutil
import pytest

from areal_conformance.probes.processes import descendants, survivors
from areal_core.contract.errors import CapabilityError, GenerationFailed, ModelError, WorkerError
from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_torch.testing.serving import ask

from .toy import ToyDialect, ToyEngine, ask_many, kill_server, other_weights, started


@pytest.mark.usefixtures("nothing_left")
def test_a_whole_life_leaves_nothing(model):
    """Start, generate, update, close while busy: children, ports, descriptors, folders, threads are as before."""

    before = descendants(os.getpid())

    async def run():
        dialect = ToyDialect(["--child"])
        async with started(model, dialect) as engine:
            pid, port = (await engine.facts())["pid"], dialect.launches[0].port
            call = asyncio.ensure_future(engine.generate(ask(5, max_new_tokens=2)))
            await engine.until_in_server(1)
            await engine.receive_weights(other_weights(model).offer(1), 1)
            await engine.commit_weights(1)
            await engine.receive_weights(other_weights(model).offer(2), 2)
            started_pids = [one for one in descendants(os.getpid()) if one not in before]
            await engine.step(2)
            generation = await call
            ask_many(engine, [ask(6)])
            await engine.until_in_server(1)
        listening = [c for c in psutil.net_connections() if c.status == "LISTEN" and c.laddr.port == port]
        return pid, started_pids, generation, listening

    pid, started_pids, generation, listening = asyncio.run(run())

    assert pid in started_pids
    assert len(started_pids) == 3, "a watchdog, a server, and its child that left the process group"
    assert survivors(started_pids, 0) == []
    assert listening == []
    assert [span.version for span in generation.version_spans] == [1]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (["--fail", "no space left"], {}, WorkerError, "no space left"),
        (["--fail", "bad model: no layers"], {}, ModelError, "bad model"),
        (["--fail", "address already in use"], {}, WorkerError, "address already in use"),
        (["--never"], {"start_timeout_s": 10.0}, WorkerError, "within 10 s"),
    ],
)
def test_a_failed_start_tells_the_servers_last_words_and_leaves_nothing(model, arguments, options, error, words):
    """By the type of whose fault it is; only a port somebody else took is tried again."""
    dialect = ToyDialect(arguments)

    async def run():
        with pytest.raises(error, match=words) as caught:
            async with started(model, dialect, **options):
                pass
        return str(caught.value)

    text = asyncio.run(run())

    assert "loading" in text or "--never" in arguments
    assert len(dialect.launches) == 1 + ("address" in words)


@pytest.mark.usefixtures("nothing_left")
def test_a_folder_without_a_model_starts_no_server(tmp_path):
    """ModelError, before anything runs."""
    dialect = ToyDialect()
    with pytest.raises(ModelError):
        asyncio.run(ToyEngine(dialect).start(InferenceSpec(model_path=str(tmp_path))))
    assert dialect.launches == []


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_start_can_be_ended(model, how):
    """By `close` or by cancelling it, while the server loads."""

    async def run():
        dialect = ToyDialect(["--never"])
        engine = ToyEngine(dialect)
        start = asyncio.ensure_future(engine.start(InferenceSpec(model_path=str(model))))
        await engine.until(lambda: dialect.launches and descendants(os.getpid()))
        if how == "close":
            await engine.close()
        else:
            start.cancel()
        outcome = (await asyncio.gather(start, return_exceptions=True))[0]
        await engine.close()
        return type(outcome).__name__

    assert asyncio.run(run()) == {"close": "GenerationFailed", "cancel": "CancelledError"}[how]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("when", ["starting again", "dying"])
def test_close_while_a_server_is_brought_back(model, when):
    """Nobody hangs, nothing is left."""

    async def run():
        dialect = ToyDialect()
        async with started(model, dialect) as engine:
            calls = ask_many(engine, [ask(5, 2), ask(5, 3)])
            await engine.until_in_server(2)
            dialect.arguments.append("--never")
            await kill_server(engine)
            if when == "starting again":
                await engine.until(lambda: len(dialect.launches) == 2)
            calls += [asyncio.ensure_future(engine.pause(PauseMode.ABORT))]
            await asyncio.sleep(0)
        return await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(asyncio.run(run())[2], GenerationFailed)


def test_a_layout_that_its_servers_cannot_have_starts_nothing(model):
    """The error names the axis that is wrong and those that are right; no process is there, no folder."""
    before = descendants(os.getpid())

    async def run():
        engine = ToyEngine(ToyDialect())
        with pytest.raises(CapabilityError, match="cuts a replica along pipeline") as refused:
            await engine.start(InferenceSpec(model_path=str(model), layout={"d": 2, "p": 2, "t": 1}))
        await engine.close()
        return refused.value

    refused = asyncio.run(run())

    assert "t (tensor)" in refused.why
    assert {*descendants(os.getpid())} == {*before}
