"""A server's life with real processes: start, crash, hang, restart, end; and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from areal_conformance.probes.processes import descendants, survivors
from areal_core.contract.errors import GenerationFailed, ModelError, PlanError, WeightSyncError, WorkerError
from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_serving.dialect import Command
from areal_serving.server import ServerProcess
from areal_torch.testing.serving import FolderWeights, ask

from .toy import ToyDialect, ToyEngine, ask_many, beside, started
from .toy_server import fingerprints, mark_of, token


def other(model, seed=1.0):
    """Return other weights for the model."""
    weights = FolderWeights.of(model)
    return FolderWeights({name: tensor + seed for name, tensor in weights.tensors.items()}, weights.tied)


def held():
    """Return what this process has: children, threads of ours, descriptors, folders."""
    gc.collect()
    return (
        descendants(os.getpid()),
        sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("areal-")),
        psutil.Process().num_fds(),
        sorted(path.name for path in Path(tempfile.gettempdir()).glob("*areal-toy-*")),
    )


@pytest.fixture
def nothing_left(tmp_path, monkeypatch):
    """Check that a test leaves no process, thread, descriptor, folder or segment behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    subprocess.Popen(["true"]).wait()
    before = held()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("areal-"):
            thread.join(10)
    assert before == held()


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
            await engine.receive_weights(other(model).offer(1), 1)
            await engine.commit_weights(1)
            await engine.receive_weights(other(model).offer(2), 2)
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


async def killed(engine):
    """Kill the server as the kernel does when memory runs out."""
    os.kill((await engine.facts())["pid"], signal.SIGKILL)


def restarts(engine):
    """Return how often the server was started again."""
    return engine.running.server.num_restarts


def test_a_crash_while_busy_costs_no_answer_and_keeps_weights_and_version(model):
    """Callers get whole answers from the next server, computed by the version the one that died had."""

    async def run():
        dialect = ToyDialect()
        async with started(model, dialect, concurrent=2) as engine:
            new = other(model)
            await engine.receive_weights(new.offer(4), 4)
            await engine.commit_weights(4)
            calls = ask_many(engine, [ask(5, n, max_new_tokens=6) for n in (2, 3, 4)])
            await engine.until_in_server(2)
            await engine.step(3)
            before = (await engine.status()).tokens_generated
            dialect.arguments.append("--auto")
            await killed(engine)
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
            await killed(engine)
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
            await killed(engine)
            await engine.until(lambda: restarts(engine) == 1)
            await engine.running.server.api()
            return await engine.status()

    assert asyncio.run(run()).metrics["num_restarts"] == 1


@pytest.mark.parametrize(("route", "how"), [("load", "die"), ("load", "500"), ("pause", "die"), ("resume", "die")])
def test_a_server_lost_within_a_commit_is_replaced_and_the_commit_done(model, route, how):
    """Nobody knows what a server holds that failed midway: the next one loads the old weights, then the new."""

    async def run():
        async with started(model) as engine:
            await engine.receive_weights(other(model).offer(1), 1)
            await engine.commit_weights(1)
            await engine.receive_weights(other(model, 2.0).offer(2), 2)
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
            await engine.receive_weights(other(model).offer(1), 1)
            await engine.commit_weights(1)
            await engine.receive_weights(other(model, 2.0).offer(2), 2)
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
            await engine.receive_weights(other(model).offer(1), 1)
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
            await killed(engine)
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
            await killed(engine)
            if when == "starting again":
                await engine.until(lambda: len(dialect.launches) == 2)
            calls += [asyncio.ensure_future(engine.pause(PauseMode.ABORT))]
            await asyncio.sleep(0)
        return await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(asyncio.run(run())[2], GenerationFailed)


WORKER = """
import asyncio, sys
from areal_serving.dialect import Command
from areal_serving.server import ServerProcess

async def run():
    server = ServerProcess("toy", Command(argv=sys.argv[1:]))
    await server.exited()

asyncio.run(run())
"""


def test_the_server_and_all_it_started_die_with_the_worker():
    """SIGKILL of the worker: watchdog, server, and a child that left the server's process group are gone."""
    command = [sys.executable, "-c", WORKER, "bash", "-c", "setsid sleep 600 & echo up; sleep 600"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        assert worker.stderr.readline() == b"[toy] up\n"
        pids = descendants(worker.pid)
        worker.kill()
    assert len(pids) == 3
    assert survivors(pids, 10.0) == []


def test_the_key_is_nowhere_but_in_the_environment_of_the_server(model, capfd, caplog):
    """Not in arguments, logs, errors or representations; and a stranger without it is refused."""

    async def run():
        dialect = ToyDialect(["--auto"])
        async with started(model, dialect) as engine:
            key = dialect.launches[0].key
            facts = await engine.facts()
            with pytest.raises(GenerationFailed) as caught:
                await engine.misbehave("generate", "500")
                await engine.generate(ask(5))
            shown = [repr(dialect.launches), repr(dialect.command(dialect.launches[0])), repr(vars(engine))]
            guard = psutil.Process(facts["pid"]).parent().cmdline()
            seen = [*facts["argv"], *guard, str(caught.value), *shown]
            session = (await engine.running.server.api()).headers
            return key, seen, facts["env"]["TOY_KEY"], session

    key, seen, in_server, headers = asyncio.run(run())

    assert key == in_server
    assert key in headers["Authorization"]
    assert len(key) > 30
    captured = capfd.readouterr()
    assert not any(key in text for text in (*seen, captured.out, captured.err, caplog.text))


def test_the_trainers_python_does_not_reach_into_the_server(model, monkeypatch):
    """PYTHONPATH and its like stay here; everything else is handed on."""
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "PYTHONHOME"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("KEPT", "1")
    command = Command(argv=[sys.executable, "-c", "import os; print(sorted(os.environ))"])

    async def run():
        process = ServerProcess("toy", command)
        await process.exited()
        await process.end()
        return process.tail()

    names = asyncio.run(run())

    assert "KEPT" in names
    assert not any(name in names for name in ("PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "PYTHONHOME"))


def test_a_servers_exit_code_and_last_words_are_kept(capfd):
    """Also those of a signal, and of a command that is not there."""

    async def run(*argv):
        process = ServerProcess("toy", Command(argv=argv))
        await process.exited()
        await process.end()
        return process.exit_code(), process.tail()

    assert asyncio.run(run("sh", "-c", "echo one; echo two >&2; exit 5")) == (5, "one\ntwo")
    assert asyncio.run(run("sh", "-c", "kill -9 $$"))[0] == 137
    code, words = asyncio.run(run("/no/such/program"))
    assert (code, "No such file" in words) == (1, True)
    assert "[toy] two" in capfd.readouterr().err


def test_a_server_that_ignores_the_request_to_end_is_killed():
    """With all it started."""

    async def run():
        script = "trap '' TERM; sleep 600 & echo up; while :; do sleep 0.1; done"
        process = ServerProcess("toy", Command(argv=["bash", "-c", script]))
        while not process.tail():  # noqa: ASYNC110
            await asyncio.sleep(0)
        pids = [process.pid, *descendants(process.pid)]
        await process.end(patience_s=0.2)
        return pids

    pids = asyncio.run(run())

    assert len(pids) >= 3
    assert survivors(pids, 0) == []


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
            with pytest.raises(GenerationFailed, match="does not answer as it must"):
                await engine.generate(ask(5))
            with pytest.raises(GenerationFailed):
                await engine.generate(ask(5))

    asyncio.run(run())
