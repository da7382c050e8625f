"""Sandboxes end when they should: closed, cancelled, or left alone by a controller that was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import uvloop
from plugins.areal_sandbox.tests.conftest import ROOMY, Bench

from areal_agentic.sandbox import Ending, Limits, Ran, Sandbox, SandboxError, SandboxProvider
from areal_core.plugins.registry import default_registry
from areal_sandbox.local.config import LocalSandboxConfig
from areal_sandbox.local.provider import LocalProvider

LASTS = f"60.{os.getpid()}"
"""Seconds; how the processes of these tests are known."""
UNTIL_KILLED = ["sh", "-c", f"echo begun > begun; sleep {LASTS} & sleep {LASTS}"]
CRASHING = """
import asyncio, os, signal
from areal_agentic.sandbox import Limits
from areal_sandbox.local.provider import LocalProvider

async def main():
    provider = LocalProvider()
    if {alone}:
        provider.groups = None
    sandboxes = [await provider.open(Limits()) for _ in range(2)]
    for sandbox in sandboxes:
        asyncio.ensure_future(sandbox.run(["sleep", "61"]))
    print(*(sandbox._room.pid for sandbox in sandboxes), flush=True)
    await asyncio.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def begun(sandbox: Sandbox) -> asyncio.Task[Ran]:
    """Start a command that lasts, and return once it runs."""
    task = asyncio.ensure_future(sandbox.run(UNTIL_KILLED))
    while not _below():  # noqa: ASYNC110  (what runs in a sandbox has nothing to tell us with)
        await asyncio.sleep(0.01)
    return task


def _below() -> list[int]:
    """Return the processes of the command; `begun` looks for its own."""
    return [each.pid for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", LASTS]]


def test_a_cancelled_call_kills_its_command(either: Bench) -> None:
    """And the sandbox goes on."""

    async def use(sandbox: Sandbox) -> Ran:
        task = await begun(sandbox)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not _below()
        return await sandbox.run(["cat", "begun"])

    assert either(use).stdout == "begun\n"


def test_cancelled_at_any_moment(either: Bench) -> None:
    """Also while it starts, when asyncio itself would kill one process and leave those below."""

    async def use(sandbox: Sandbox) -> Ran:
        for turns in (*range(6), *range(6, 40, 5)) * 2:
            task = asyncio.ensure_future(sandbox.run(["sleep", LASTS]))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)
        assert not _below()
        return await sandbox.run(["echo", "fine"])

    assert either(use).stdout == "fine\n"


def test_close_ends_what_runs(either: Bench) -> None:
    """Who waits for the command is told; closing twice is fine, and a closed sandbox runs nothing."""

    async def use(sandbox: Sandbox) -> None:
        task = await begun(sandbox)
        await asyncio.gather(sandbox.close(), sandbox.close())
        with pytest.raises(SandboxError, match="closed"):
            await task
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.run(["true"])
        assert not _below()

    either(use)


def test_a_cancelled_open_leaves_nothing(bench: Bench) -> None:
    """Cancelled after any number of turns of the loop."""

    async def used() -> None:
        provider = bench.provider()
        for turns in (0, 1, 2, 4, 8, 16):
            task = asyncio.ensure_future(provider.open(ROOMY))
            for _ in range(turns):
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await provider.close()

    asyncio.run(used())


def test_commands_of_one_sandbox_take_turns(bench: Bench) -> None:
    """The second begins after the first has ended."""

    async def use(sandbox: Sandbox) -> list[Ran]:
        first = sandbox.run(["sh", "-c", "test -e x || { touch x; sleep 0.2; rm x; echo alone; }"])
        second = sandbox.run(["sh", "-c", "test -e x || echo alone"])
        return list(await asyncio.gather(first, second))

    assert [ran.stdout for ran in bench(use)] == ["alone\n", "alone\n"]


def test_files_stay_between_commands_and_go_with_the_sandbox(bench: Bench) -> None:
    """Another sandbox does not see them."""

    async def use(sandbox: Sandbox) -> tuple[str, str]:
        await sandbox.write("a/b", b"1")
        here = await sandbox.run(["cat", "a/b"])
        async with bench.opened() as other:
            return here.stdout, (await other.run(["ls"])).stdout

    assert bench(use) == ("1", "")


def test_only_the_environment_that_is_given(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process's is seen."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    ran = bench.run("env", environment={"MINE": "1 2"})

    assert {line.split("=")[0] for line in ran.stdout.splitlines()} == {"PATH", "HOME", "LANG", "MINE"}
    assert "MINE=1 2" in ran.stdout


@pytest.mark.parametrize("command", [["x\0y"], ["x" * (1 << 20)], ["\ud800"]])
def test_a_command_that_cannot_be_passed(bench: Bench, command: list[str]) -> None:
    """It is the caller's error, and says what to do."""

    async def use(sandbox: Sandbox) -> str:
        with pytest.raises(SandboxError, match="cannot be started") as refused:
            await sandbox.run(command)
        return refused.value.fix + (await sandbox.run(["echo", "fine"])).stdout

    assert "to a file" in bench(use)


@pytest.mark.parametrize("alone", [False, True], ids=["groups", "looked_at"])
def test_a_killed_controller_leaves_nothing(checked: None, alone: bool) -> None:
    """Its sandboxes end with it, and their control groups."""
    controller = subprocess.Popen(
        [sys.executable, "-c", CRASHING.format(alone=alone)], stdout=subprocess.PIPE, text=True
    )
    assert controller.stdout is not None
    rooms = [psutil.Process(int(pid)) for pid in controller.stdout.readline().split()]
    controller.stdout.close()

    assert controller.wait(timeout=30) == -signal.SIGKILL
    _gone, alive = psutil.wait_procs(rooms, timeout=30)
    assert (len(rooms), alive) == (2, [])
    groups = LocalProvider().groups
    left = (
        []
        if groups is None
        else [path for top in {groups.memory, groups.pids} for path in top.glob(f"areal-sandbox-{controller.pid}-*")]
    )
    for path in left:
        while path.exists():
            subprocess.run(["sleep", "0.05"], check=True)


def test_uvloop_does_as_well(checked: None) -> None:
    """The event loop of a run."""

    async def used() -> list[Ran]:
        provider = LocalProvider()
        sandbox = await provider.open(ROOMY)
        try:
            return [
                await sandbox.run(["cat"], stdin=bytes(100_000)),
                await sandbox.run(["true"], stdin=bytes(1 << 20)),
                await sandbox.run(["sleep", LASTS], timeout_s=0.2),
            ]
        finally:
            await provider.close()

    ran = uvloop.run(used())

    assert [each.ending for each in ran] == [Ending.EXITED, Ending.EXITED, Ending.TIMEOUT]


def test_it_is_found_by_name() -> None:
    """The registry builds it, with its options."""
    provider = default_registry().build("sandbox", "local", {"readable": ["/usr"]})

    assert isinstance(provider, SandboxProvider)
    assert provider.config == LocalSandboxConfig(readable=("/usr",))


def test_it_has_no_images(bench: Bench) -> None:
    """The refusal names those that have."""
    with pytest.raises(SandboxError, match="no image") as refused:
        asyncio.run(bench.provider().open(Limits(), image="python:3.12"))

    assert "podman" in refused.value.fix


@pytest.mark.parametrize("options", [{"python": "/no/such/python"}, {"readable": ("/no/such",)}])
def test_options_that_name_what_is_not_there(options: dict[str, object]) -> None:
    """Told before a run starts."""
    with pytest.raises(SandboxError, match="/no/such"):
        LocalProvider(LocalSandboxConfig(**options)).check()


def test_a_machine_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that brings it."""
    monkeypatch.setenv("PATH", "/no/such")

    with pytest.raises(SandboxError, match="no sandbox") as refused:
        LocalProvider().check()
    assert "apt-get install bubblewrap" in refused.value.fix


def test_another_python_brings_its_packages(bench: Bench) -> None:
    """A virtual environment is shown with the installation it stands on."""
    bench.config = LocalSandboxConfig(python=sys.executable)
    ran = bench.python("import attrs, sys; print(sys.prefix)")

    assert ran.stdout.strip() == sys.prefix, ran.stderr


def test_readable_folders_are_read_and_not_written(bench: Bench, tmp_path: Path) -> None:
    """At the place they have here."""
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("1")
    bench.config = LocalSandboxConfig(readable=(str(tmp_path),))
    ran = bench.run("sh", "-c", f"cat {tmp_path}/data; echo 2 > {tmp_path}/data")

    assert (ran.stdout, ran.ok) == ("1", False)
