"""The providers `docker` and `podman` against the real ones, where they are: real containers, real limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen
from plugins.areal_sandbox.tests.images import image

from areal_agentic.sandbox import Ending, Limits, Ran, Sandbox, SandboxError
from areal_core.plugins.registry import default_registry
from areal_sandbox.containers.config import ContainerConfig
from areal_sandbox.containers.provider import ContainerProvider

IMAGE = "localhost/areal-sandbox-test"
LIMITS = Limits(timeout_s=20.0, memory_mb=64, processes=16, disk_mb=4, output_bytes=4096)
START_S = 60
OF_ITS_OWN = ["unshare", "--mount", "setpriv", "--pdeathsig", "TERM"]  # a daemon's mounts must not outlive it

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have a docker daemon: the one that runs, or one of these tests where root has the program."""
    if shutil.which("docker") is None or _works("docker", "info"):
        yield
        return
    if not all(map(shutil.which, ("dockerd", "unshare", "setpriv"))) or os.geteuid():
        pytest.skip("no docker daemon answers, and none can be started")
    place = tmp_path_factory.mktemp("docker")
    socket = f"unix://{place}/socket"
    options = [
        "--data-root",
        f"{place}/data",
        "--exec-root",
        f"{place}/exec",
        "--pidfile",
        f"{place}/pid",
        "-H",
        socket,
    ]
    without = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"]
    with (place / "log").open("wb") as log:
        started = subprocess.Popen(
            [*OF_ITS_OWN, "dockerd", "--host", socket, *options, *without], stdout=log, stderr=log
        )
    patch = pytest.MonkeyPatch()
    patch.setenv("DOCKER_HOST", socket)
    try:
        for _ in range(START_S * 10):
            if _works("docker", "info") or started.poll() is not None:
                break
            subprocess.run(["sleep", "0.1"], check=True)
        yield
    finally:
        started.terminate()
        started.wait(START_S)
        patch.undo()


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=START_S).returncode == 0


@frozen
class Bench:
    """A provider that works here."""

    program: str
    config: ContainerConfig

    def __call__(self, use: Callable[[Sandbox], Awaitable[Any]], limits: Limits = LIMITS, **options: Any) -> Any:
        """Return what a coroutine function makes of a sandbox."""

        async def used() -> Any:
            provider = ContainerProvider(self.program, evolve(self.config, **options))
            try:
                return await use(await provider.open(limits))
            finally:
                await provider.close()

        return asyncio.run(used())

    def run(self, *command: str, limits: Limits = LIMITS, **more: Any) -> Ran:
        """Return how one command in a sandbox of its own ends."""
        ran: Ran = self(lambda sandbox: sandbox.run(command, **more), limits)
        return ran

    def left(self) -> str:
        """Return the containers of this process that are there."""
        base = [self.program, *(["--runtime", self.config.runtime] if self.config.runtime else [])]
        listed = [*base, "ps", "--all", "--quiet", "--filter", f"name=areal-sandbox-{os.getpid()}-"]
        return subprocess.run(listed, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session", params=["docker", "podman"])
def found(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Give a provider whose check passes, with the runtime that this machine's control groups need."""
    program: str = request.param
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    if program == "docker":
        request.getfixturevalue("daemon")
    imported = subprocess.run([program, "import", "-", IMAGE], input=image(), capture_output=True, check=False)
    if imported.returncode != 0:
        pytest.skip(f"{program} takes no image: {imported.stderr.decode()[-200:]}")
    refused = ""
    for runtime in ("", "runc"):
        config = ContainerConfig(image=IMAGE, runtime=runtime)
        try:
            ContainerProvider(program, config).check()
        except SandboxError as error:
            refused = str(error)
        else:
            yield Bench(program, config)
            break
    else:
        pytest.skip(f"{program} makes no containers here: {refused[-300:]}")
    subprocess.run([program, "rmi", "--force", IMAGE], capture_output=True, check=True)


@pytest.fixture
def bench(found: Bench) -> Iterator[Bench]:
    """Give the provider, and see that no container is left."""
    yield found

    assert found.left() == ""


def test_a_command_and_its_ends(bench: Bench) -> None:
    """Input, output, variables, exit codes; the user is nobody's."""

    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run(["sh", "-c", "cat; echo $MINE >&2; exit 3"], stdin=b"in", environment={"MINE": "1 2"})
        assert (ran.ending, ran.exit_code, ran.stdout, ran.stderr) == (Ending.EXITED, 3, "in", "1 2\n")
        assert (await sandbox.run(["no-such-program"])).exit_code == 127
        assert (await sandbox.run(["sh", "-c", "kill -9 $$"])).ending == Ending.KILLED
        assert int((await sandbox.run(["id", "-u"])).stdout) > 1000

    bench(use)


def test_only_the_environment_that_is_given(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process's is seen, in any process of the container."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    own = bench.run("env")
    all_of_them = bench.run("sh", "-c", "cat /proc/[0-9]*/environ")

    assert {line.split("=")[0] for line in own.stdout.splitlines()} == {"PATH", "HOME", "LANG"}
    assert "secret" not in all_of_them.stdout


def test_files_stay_in_the_folder(bench: Bench) -> None:
    """Written, read, and refused where a link leads out."""

    async def use(sandbox: Sandbox) -> None:
        await sandbox.write("a/b", b"\xff1")
        assert await sandbox.read("a/b") == b"\xff1"
        await sandbox.run(["sh", "-c", "ln -s /etc out; ln -s /bin/sh file; mkfifo pipe"])
        for path in ("../etc/passwd", "/etc/passwd", "file", "pipe", "a"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        with pytest.raises(SandboxError):
            await sandbox.write("out/x", b"1")

    bench(use)


def test_a_fork_bomb_ends(bench: Bench) -> None:
    """One with a fuse of its own; the sandbox is as good as before."""

    async def use(sandbox: Sandbox) -> tuple[Ran, Ran]:
        bomb = "n=0; while [ $n -lt 100 ]; do sleep 30 & n=$((n + 1)); done; echo all"
        return await sandbox.run(["sh", "-c", bomb]), await sandbox.run(["sh", "-c", "ls -d /proc/[0-9]* | grep -c ."])

    ran, after = bench(use)

    assert (ran.ok, ran.stdout) == (False, "")
    assert int(after.stdout) <= 6


def test_a_memory_hog_ends(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox is as good as before, and no file is left where the run was started."""
    monkeypatch.chdir(tmp_path)

    async def use(sandbox: Sandbox) -> tuple[Ran, Ran]:
        hog = "hold=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 9"
        return await sandbox.run(["sh", "-c", hog]), await sandbox.run(["sh", "-c", "echo fine"])

    ran, after = bench(use)

    assert (ran.ending, after.stdout) == (Ending.MEMORY, "fine\n")
    assert list(tmp_path.iterdir()) == []


def test_an_infinite_loop_ends_in_time(bench: Bench) -> None:
    """And so does what it left in the background."""

    async def use(sandbox: Sandbox) -> tuple[Ran, Ran]:
        ran = await sandbox.run(["sh", "-c", "sleep 600 & while :; do :; done"], timeout_s=0.5)
        return ran, await sandbox.run(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm"])

    ran, after = bench(use)

    assert (ran.ending, after.stdout) == (Ending.TIMEOUT, "")


def test_endless_output_is_cut(bench: Bench) -> None:
    """What came first is kept."""
    ran = bench.run("sh", "-c", "while :; do echo xxxxxxx; done", timeout_s=0.5)

    assert (ran.ending, ran.truncated, ran.stdout) == (Ending.TIMEOUT, True, "xxxxxxx\n" * 512)


def test_disk_network_and_rights(bench: Bench) -> None:
    """Nothing but the two folders can be written, they are bounded; there is no network and no capability."""

    async def use(sandbox: Sandbox) -> None:
        full = await sandbox.run(["sh", "-c", "head -c 10000000 /dev/zero > fill; ls -s --block-size=1 fill"])
        assert int(full.stdout.split()[0]) <= LIMITS.disk_mb << 20
        for path in ("/x", "/etc/x", "/bin/x", "/proc/sys/kernel/core_pattern"):
            assert not (await sandbox.run(["sh", "-c", f"echo 1 > {path}"])).ok, path
        network = await sandbox.run(["sh", "-c", "grep -c : /proc/net/dev"])
        assert network.stdout == "1\n"
        rights = await sandbox.run(["grep", "-E", "CapEff|CapBnd|NoNewPrivs", "/proc/self/status"])
        assert [line.split()[1].lstrip("0") for line in rights.stdout.splitlines()] == ["", "", "1"]

    bench(use)


def test_root_may_write_the_image(bench: Bench) -> None:
    """For tasks that install something; what its commands started ends as well."""

    async def use(sandbox: Sandbox) -> None:
        assert (
            await sandbox.run(["sh", "-c", "mkdir -p /tests && touch /tests/x && sleep 600 & id -u"])
        ).stdout == "0\n"
        assert (await sandbox.run(["ls", "/tests"])).stdout == "x\n"
        assert (await sandbox.run(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm"])).stdout == ""

    bench(use, root=True)


def test_a_cancelled_call_and_a_closed_sandbox(bench: Bench) -> None:
    """The command ends first; a closed sandbox runs nothing."""

    async def use(sandbox: Sandbox) -> None:
        task = asyncio.ensure_future(sandbox.run(["sh", "-c", "echo 1 > begun; sleep 600"]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await sandbox.run(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm"])).stdout == ""
        await asyncio.gather(sandbox.close(), sandbox.close())
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.run(["true"])

    bench(use)


CRASHING = """
import asyncio, os, signal, sys
from areal_agentic.sandbox import Limits
from areal_sandbox.containers.config import ContainerConfig
from areal_sandbox.containers.provider import ContainerProvider

async def main():
    sandbox = await ContainerProvider({program!r}, ContainerConfig(image={image!r}, runtime={runtime!r})).open(Limits())
    print(sandbox.name, flush=True)
    asyncio.ensure_future(sandbox.run(["sleep", "600"]))
    await asyncio.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_killed_controller_leaves_no_container(bench: Bench) -> None:
    """It ends with the pipe."""
    code = CRASHING.format(program=bench.program, image=IMAGE, runtime=bench.config.runtime)
    crashed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=START_S)
    name = crashed.stdout.strip()

    assert (crashed.returncode, bool(name)) == (-signal.SIGKILL, True), crashed.stderr
    for _ in range(START_S * 10):
        if not _works(bench.program, "inspect", name):
            break
        subprocess.run(["sleep", "0.1"], check=True)
    assert not _works(bench.program, "inspect", name)


def test_an_image_that_is_not_there(bench: Bench) -> None:
    """The command's own words are told."""
    provider = ContainerProvider(bench.program, evolve(bench.config, image="localhost:1/no-such-image"))
    with pytest.raises(SandboxError, match="made no container of localhost:1/no-such-image") as refused:
        asyncio.run(provider.open(LIMITS))

    assert "localhost:1" in refused.value.why


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_found_by_name_and_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry builds it; a machine without the command is told so."""
    provider: Any = default_registry().build("sandbox", name, {"image": "python:3.12-slim", "runtime": "runsc"})
    monkeypatch.setenv("PATH", "/no/such")

    assert (provider.program, provider.config.runtime) == (name, "runsc")
    for use in (provider.check, lambda: asyncio.run(provider.open(LIMITS))):
        with pytest.raises(SandboxError, match=name) as refused:
            use()
        assert f"install {name}" in refused.value.fix


def test_a_daemon_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has its words, and how to start it."""
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    with pytest.raises(SandboxError, match="no sandbox of the provider docker") as refused:
        ContainerProvider("docker").check()

    assert "dockerd" in refused.value.fix
