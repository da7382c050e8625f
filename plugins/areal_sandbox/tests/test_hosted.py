"""The providers `e2b` and `daytona`: their own clients, against servers here that speak as much of their protocols."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from attrs import frozen

from areal_agentic.sandbox import Ending, Limits, Ran, Sandbox, SandboxError, SandboxProvider
from areal_core.plugins.registry import default_registry

pytest.importorskip("e2b", reason="e2b is not installed")
pytest.importorskip("daytona", reason="daytona is not installed")

from plugins.areal_sandbox.tests import machines

LIMITS = Limits(timeout_s=20.0, memory_mb=128, processes=16, disk_mb=4, output_bytes=4096)
KEYS = {"e2b": "E2B_API_KEY", "daytona": "DAYTONA_API_KEY"}


@frozen
class Bench:
    """A provider by name, and the server that it asks."""

    name: str
    service: machines.Service

    def provider(self, **options: Any) -> SandboxProvider:
        built = default_registry().build("sandbox", self.name, options)
        assert isinstance(built, SandboxProvider)
        return built

    def __call__(self, use: Callable[[Sandbox], Awaitable[Any]], limits: Limits = LIMITS, image: str = "") -> Any:
        """Return what a coroutine function makes of a sandbox."""

        async def used() -> Any:
            provider = self.provider()
            try:
                return await use(await provider.open(limits, image=image))
            finally:
                await provider.close()

        return asyncio.run(used())


@pytest.fixture(scope="module", params=["e2b", "daytona"])
def served(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Serve one of them; its machines are namespaces, which root can make."""
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("the machines of these tests are namespaces that root makes with util-linux")
    service = machines.Service()
    patch = pytest.MonkeyPatch()
    with machines.serving(getattr(machines, request.param)(service), service):
        variables = {
            "E2B_API_URL": service.url,
            "E2B_SANDBOX_URL": service.url,
            "E2B_HTTP_VERSION": "1.1",
            "DAYTONA_API_URL": f"{service.url}/api",
            KEYS[request.param]: machines.KEY,
        }
        for name, value in variables.items():
            patch.setenv(name, value)
        yield Bench(request.param, service)
        patch.undo()


@pytest.fixture
def bench(served: Bench) -> Iterator[Bench]:
    """Give a provider, and see that every machine was given back."""
    yield served

    assert served.service.machines == {}


def test_a_command_and_its_ends(bench: Bench) -> None:
    """Input, output, variables, exit codes, signals; the user has no rights."""

    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run(["sh", "-c", "cat; echo $MINE >&2; exit 3"], stdin=b"in", environment={"MINE": "1 '2'"})
        assert (ran.ending, ran.exit_code, ran.stdout, ran.stderr) == (Ending.EXITED, 3, "in", "1 '2'\n")
        assert (await sandbox.run(["no-such-program"])).exit_code == 127
        assert (await sandbox.run(["sh", "-c", "kill -9 $$"])).ending == Ending.KILLED
        assert (await sandbox.run(["sh", "-c", "id -u; pwd; cat"])).stdout == "54321\n/home/sandbox\n"
        rights = await sandbox.run(["grep", "-E", "CapEff|NoNewPrivs", "/proc/self/status"])
        assert [line.split()[1].lstrip("0") for line in rights.stdout.splitlines()] == ["", "1"]
        assert "KEY" not in (await sandbox.run(["env"])).stdout

    bench(use)


def test_files_stay_in_the_folder(bench: Bench) -> None:
    """Written, read as bytes, and refused where a link leads out."""

    async def use(sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 300
        await sandbox.write("a/b", data)
        assert await sandbox.read("a/b", max_bytes=70_000) == data[:70_000]
        await sandbox.run(["sh", "-c", "ln -s /etc out; mkfifo pipe"])
        for path in ("../x", "/etc/passwd", "out/passwd", "pipe", "a", "none"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        with pytest.raises(SandboxError):
            await sandbox.write("out/x", b"1")

    bench(use)


def test_limits_of_time_output_and_processes(bench: Bench) -> None:
    """And nothing of a command is left for the next one, whatever it tried."""

    async def use(sandbox: Sandbox) -> None:
        loop = await sandbox.run(["sh", "-c", "setsid sleep 600 & while :; do echo xxxxxxx; done"], timeout_s=0.5)
        assert (loop.ending, loop.truncated, loop.stdout) == (Ending.TIMEOUT, True, "xxxxxxx\n" * 512)
        bomb = await sandbox.run(["sh", "-c", "n=0; while [ $n -lt 99 ]; do sleep 600 & n=$((n + 1)); done; echo all"])
        assert (bomb.ok, bomb.stdout) == (False, "")
        hog = await sandbox.run(["sh", "-c", "hold=$(head -c 300000000 /dev/zero | tr '\\0' x); echo all"])
        assert (hog.ok, hog.stdout) == (False, "")
        assert (await sandbox.run(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm"])).stdout == ""
        control = await sandbox.run(["sh", "-c", "ls /run/areal; echo bad > /etc/profile; echo bad >> ~root/.profile"])
        assert (control.ok, control.stdout) == (False, "")

    bench(use)


def test_a_cancelled_call_and_a_closed_sandbox(bench: Bench) -> None:
    """The command ends first, the machine is given back once, and a closed sandbox runs nothing."""

    async def use(sandbox: Sandbox) -> Ran:
        task = asyncio.ensure_future(sandbox.run(["sh", "-c", "echo 1 > begun; sleep 600"]))
        while not (await asyncio.to_thread(_seen, bench)):  # noqa: ASYNC110  (the machine has nothing to tell us with)
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        after = await sandbox.run(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm"])
        await asyncio.gather(sandbox.close(), sandbox.close())
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.run(["true"])
        return after

    assert bench(use).stdout == ""


def _seen(bench: Bench) -> bool:
    machine = bench.service.last
    assert machine is not None
    return asyncio.run(machine.run("test", "-s", "/home/sandbox/begun"))[0] == 0


def test_what_a_machine_is_asked_for(bench: Bench) -> None:
    """No network unless the limits say so, an end of its own, and the image by name."""
    asked = []
    for network in (False, True):

        async def use(sandbox: Sandbox) -> None:
            assert bench.service.last is not None
            asked.append(bench.service.last.asked)

        bench(use, Limits(network=network, memory_mb=1500), image="python:3.12-slim")

    if bench.name == "e2b":
        told = [(each["allow_internet_access"], each["timeout"], each["templateID"]) for each in asked]
        assert told == [(False, 3600, "python:3.12-slim"), (True, 3600, "python:3.12-slim")]
    else:
        names = ("networkBlockAll", "autoStopInterval", "autoDeleteInterval", "user", "memory")
        assert [[each[name] for name in names] for each in asked] == [
            [True, 15, 0, "root", 2],
            [False, 15, 0, "root", 2],
        ]
        assert "FROM python:3.12-slim" in asked[0]["buildInfo"]["dockerfileContent"]


def test_a_check_tells_a_key_that_is_missing_or_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run starts; the key itself is told nowhere, not even where the service says it."""
    bench.provider().check()
    wrong = machines.KEY.replace("0", "9")
    monkeypatch.setenv(KEYS[bench.name], wrong)
    with pytest.raises(SandboxError, match=f"no sandbox of the provider {bench.name}") as refused:
        bench.provider().check()
    assert refused.value.why and wrong not in str(refused.value)
    assert refused.value.__suppress_context__

    monkeypatch.delenv(KEYS[bench.name])
    with pytest.raises(SandboxError, match="no sandbox") as refused:
        bench.provider().check()
    assert KEYS[bench.name] in refused.value.why and "export" in refused.value.fix
    with pytest.raises(SandboxError, match="no sandbox"):
        asyncio.run(bench.provider().open(LIMITS))


def test_no_such_image(bench: Bench) -> None:
    """The service's own words."""
    option = "template" if bench.name == "e2b" else "snapshot"
    with pytest.raises(SandboxError, match="made no machine of none") as refused:
        asyncio.run(bench.provider(**{option: "none"}).open(LIMITS))

    assert "not found" in refused.value.why


def test_a_machine_that_ended(bench: Bench) -> None:
    """Its lifetime was over, or its owner ended it: what is asked of it then is an error of the sandbox."""

    async def use(sandbox: Sandbox) -> None:
        assert bench.service.last is not None
        bench.service.last.crash()
        with pytest.raises(SandboxError):
            await sandbox.run(["true"])

    bench(use)


@pytest.mark.parametrize("name", ["e2b", "daytona"])
def test_a_service_that_does_not_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told as such."""
    for variable in ("E2B_API_URL", "DAYTONA_API_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.setenv(KEYS[name], machines.KEY)
    built: Any = default_registry().build("sandbox", name, {})
    with pytest.raises(SandboxError, match=f"no sandbox of the provider {name}"):
        built.check()
