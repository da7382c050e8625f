"""The process of a server: its environment and key, its last words, and that all it started ends with it."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys

import psutil
import pytest

from areal_conformance.probes.processes import descendants, survivors
from areal_core.contract.errors import GenerationFailed
from areal_serving.dialect import Command
from areal_serving.server import ServerProcess
from areal_torch.testing.serving import ask

from .toy import ToyDialect, started

WORKER = """
import asyncio, sys
from areal_serving.dialect import Command
from areal_serving.server import ServerProcess

async def run():
    server = ServerProcess("toy", Command(argv=sys.argv[1:]))
    await server.exited()

asyncio.run(run())
"""
ENDED_MEANWHILE = """
import os, signal, sys, time
from areal_worker import watchdog

set_option, starter = watchdog._prctl, os.getpid()

def late(option, value):
    if os.getpid() != starter:
        os.kill(starter, signal.SIGTERM)
        while os.getppid() == starter:
            time.sleep(0.01)
    set_option(option, value)

watchdog._prctl = late
watchdog.run(sys.argv[1:])
"""
"""A watchdog that is asked to end while its command is about to say that it ends with it."""


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


def test_a_watchdog_that_ends_while_it_starts_its_command_leaves_none():
    """A server that is closed at once: nobody would be there to end it."""
    command = [sys.executable, "-c", ENDED_MEANWHILE, "bash", "-c", "echo up; exec sleep 600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started_by:
        assert started_by.stdout is not None
        assert started_by.stdout.read(3) == b""


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
            watchdog = psutil.Process(facts["pid"]).parent().cmdline()
            seen = [*facts["argv"], *watchdog, str(caught.value), *shown]
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

    names = ast.literal_eval(asyncio.run(run()).removeprefix("[toy] "))

    assert "KEPT" in names
    assert not any(name in names for name in ("PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "PYTHONHOME"))


@pytest.mark.parametrize(("private", "mask"), [(False, "0022"), (True, "0077")])
def test_a_server_makes_files_that_others_can_read_unless_it_is_private(private, mask):
    """As its user asked, or for nobody else: also those that a library makes beside the server's folder."""

    async def run():
        before = os.umask(0o022)
        try:
            process = ServerProcess("toy", Command(argv=["sh", "-c", "umask"]), private=private)
        finally:
            os.umask(before)
        await process.exited()
        await process.end()
        return process.tail()

    assert asyncio.run(run()) == mask


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
