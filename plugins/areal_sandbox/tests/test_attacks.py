"""What code that means harm tries in a sandbox, for real: all of it has a typed end, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from attrs import evolve, frozen
from plugins.areal_sandbox.tests.conftest import ROOMY, Bench

from areal_agentic.sandbox import Ending, Limits, Ran, Sandbox, SandboxError
from areal_sandbox.local import provider as provider_module
from areal_sandbox.local import view
from areal_sandbox.local.groups import Group, Groups
from areal_sandbox.local.provider import LocalProvider

SHORT = Limits(timeout_s=1.0, memory_mb=128, processes=32, disk_mb=8, output_bytes=4096)
ROOT = Path(__file__).parents[3]


BOMB = """
import os, time
for _ in range(9):
    try: os.fork()
    except OSError: pass
os.write(1, b"x")
time.sleep(30)
"""
"""A fork bomb with a fuse of its own: 512 processes, if nothing bounds it."""


def test_a_fork_bomb_ends(either: Bench) -> None:
    """Its processes are counted, and all of them end with the command."""
    ran = either.python(BOMB, limits=evolve(SHORT, timeout_s=5.0))

    assert not ran.ok
    assert 1 < len(ran.stdout) <= SHORT.processes
    assert ran.seconds < 10.0


def test_a_fork_bomb_without_end_ends(either: Bench) -> None:
    """The classical one, where the fixture has proved that processes are counted."""
    ran = either.run("sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 30", limits=SHORT)

    assert not ran.ok
    assert ran.seconds < 10.0


def test_no_more_processes_than_allowed(either: Bench) -> None:
    """The kernel refuses another process, or another thread."""
    code = """
import threading, time
try:
    for n in range(1, 100): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
except RuntimeError: print(n, flush=True)
import os; os._exit(0)"""
    ran = either.python(code)

    assert 1 < int(ran.stdout) <= ROOMY.processes, ran


def test_limits_that_do_not_hold_are_refused(checked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider whose processes nobody counts says so before a run starts; what tries it is bounded itself."""
    monkeypatch.setattr(view, "counts_processes", lambda: False)

    @frozen(kw_only=True)
    class Careless(Groups):
        """Bounds nothing."""

        def make(self, limits: Limits) -> Group:
            return super().make(evolve(limits, processes=1000))

    provider = LocalProvider()
    if provider.groups is None:
        pytest.skip("no control groups can be made here")
    provider.groups = Careless(
        version=provider.groups.version, memory=provider.groups.memory, pids=provider.groups.pids
    )
    with pytest.raises(SandboxError, match="do not hold their limits") as refused:
        provider.check()

    assert "16 could be started where 8 may be" in refused.value.why


def test_a_machine_that_cannot_count_processes_is_refused(checked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither groups nor a kernel that counts for each namespace: no sandbox is opened."""
    monkeypatch.setattr(provider_module, "counts_processes", lambda: False)
    provider = LocalProvider()
    provider.groups = None
    for use in (provider.check, lambda: asyncio.run(provider.open(ROOMY))):
        with pytest.raises(SandboxError, match="no sandbox") as refused:
            use()
        assert "nothing bounds its processes" in refused.value.why


@pytest.mark.parametrize(("release", "counted"), [("5.13.9-generic", False), ("5.14.0", True), ("6.1.0-13", True)])
def test_linux_counts_for_each_namespace_since_5_14(release: str, counted: bool) -> None:
    """What `uname -r` says."""
    assert view.counts_processes(release) is counted


def test_a_memory_hog_ends(either: Bench) -> None:
    """The kernel, or a look at its processes, ends it; before a look comes, its own limit may."""
    ran = either.python("hold = []\nwhile True: hold.append(bytearray(1 << 20))")

    refused = not either.grouped and "MemoryError" in ran.stderr
    assert refused or (ran.ending, ran.exit_code) == (Ending.MEMORY, None)


def test_many_hogs_count_together(either: Bench) -> None:
    """Each of four is within the limit, their sum is not."""
    code = "import os, time\nos.fork(); os.fork()\nhold = bytearray(64 << 20)\ntime.sleep(30)"
    ran = either.python(code)

    assert ran.ending == Ending.MEMORY


def test_memory_that_belongs_to_no_process(bench: Bench) -> None:
    """There is no memory file, and no System V segment."""
    code = """
import ctypes, os
try: print(os.memfd_create("x"))
except OSError as error: print(error.errno)
print(ctypes.CDLL(None, use_errno=True).shmget(0, 1 << 20, 0o1600))"""
    ran = bench.python(code)

    assert ran.stdout.split() == ["38", "-1"]


def test_an_infinite_loop_ends_in_time(either: Bench) -> None:
    """The limit of the sandbox, or the shorter one of the call."""
    ran = either.python("while True: pass", timeout_s=0.3)

    assert (ran.ending, ran.exit_code) == (Ending.TIMEOUT, None)
    assert ran.seconds < 5.0


def test_a_call_cannot_lengthen_the_limit(bench: Bench) -> None:
    """The limit of the sandbox holds."""
    ran = bench.run("sleep", "30", limits=Limits(timeout_s=0.2), timeout_s=30.0)

    assert ran.ending == Ending.TIMEOUT


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut(bench: Bench, stream: str) -> None:
    """It neither blocks the reader nor fills its memory, and what came first is kept."""
    endless = f"import sys\nwhile True: sys.{stream}.write('x' * 65536)"
    for seconds in (0.5, 5.0, 50.0):  # a busy machine may take longer to begin
        ran = bench.python(endless, limits=evolve(SHORT, timeout_s=seconds))
        if ran.truncated:
            break

    assert (ran.ending, ran.truncated, getattr(ran, stream)) == (Ending.TIMEOUT, True, "x" * 4096)


def test_long_output_lets_the_command_end(bench: Bench) -> None:
    """The rest is read and thrown away."""
    ran = bench.python("import sys; sys.stdout.write('x' * 1_000_000); sys.stderr.write('end')")

    assert (ran.ok, len(ran.stdout), ran.stderr, ran.truncated) == (True, 4096, "end", True)


def test_every_place_that_can_be_written_is_bounded(bench: Bench) -> None:
    """All of them share the limit of the disk."""
    code = """
import os
total = 0
for top in ("/", "/dev", "/dev/shm", "/dev/pts", "/tmp", "/sandbox", "/run", "/etc", "/usr", "/home", "/proc"):
    try:
        with open(f"{top}/fill", "wb", buffering=0) as file:
            while True: total += file.write(bytes(1 << 20))
    except OSError: pass
print(total)"""
    ran = bench.python(code)

    assert 0 < int(ran.stdout) <= ROOMY.disk_mb << 20


def test_many_small_files_are_bounded(bench: Bench) -> None:
    """Empty files cost the kernel memory too."""
    code = "n = 0\ntry:\n while True: open(f'f{n}', 'w').close(); n += 1\nexcept OSError: print(n)"
    ran = bench.python(code)

    assert 0 < int(ran.stdout) <= ROOMY.disk_mb * 128 + 1024


def test_no_network(bench: Bench) -> None:
    """Neither a server on loopback of this machine, nor an address outside, nor a name, nor sockets without a name."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(f"\0areal-sandbox-test-{os.getpid()}")
        hidden.listen()
        code = f"""
import socket
def tried(family, address):
    try: socket.socket(family).connect(address)
    except OSError: return "refused"
    return "connected"
print(tried(socket.AF_INET, {server.getsockname()!r}))
print(tried(socket.AF_INET, ("192.0.2.1", 80)))
print(tried(socket.AF_UNIX, {hidden.getsockname()!r}))
try: print(socket.getaddrinfo("example.org", 80))
except OSError: print("refused")"""
        ran = bench.python(code)

    assert ran.stdout.split() == ["refused"] * 4, ran.stderr


def test_with_network_the_network_is_there(bench: Bench) -> None:
    """The counterpart: the same server is reached where the limits say so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection({server.getsockname()!r}); print('connected')"
        ran = bench.python(code, limits=Limits(network=True))

    assert ran.stdout.split() == ["connected"], ran.stderr


def test_no_files_of_this_machine(bench: Bench, tmp_path: Path) -> None:
    """Neither passwords, the repository, home folders, temporary files, sockets of services nor the host's devices."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    places = [secret, ROOT, "/etc/shadow", "/etc/hostname", "/root/.bashrc", "/home", "/var", "/run", "/sys/kernel",
              "/dev/vda", "/dev/kmsg", "/dev/mem", "/boot", "/proc/1/root/etc/shadow", "/proc/kcore"]  # fmt: skip
    code = """
import os, sys
for place in sys.argv[1:]:
    try: os.listdir(place) if os.path.isdir(place) else open(place, "rb").read(1)
    except OSError: continue
    print(place)"""
    ran = bench.run("python3", "-c", code, *map(str, places))

    assert (ran.ok, ran.stdout) == (True, "")


def test_the_system_cannot_be_changed(bench: Bench) -> None:
    """Programs, settings and the interpreter are read-only, for the kernel and for root's own files."""
    places = ["/usr/bin/python3", "/usr/x", "/etc/passwd", "/x", "/dev/x", os.path.realpath(sys.executable),
              "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
              "/proc/sysrq-trigger"]  # fmt: skip
    code = """
import sys
for place in sys.argv[1:]:
    try: open(place, "a").write("1")
    except OSError: continue
    print(place)"""
    ran = bench.run("python3", "-c", code, *places)

    assert (ran.ok, ran.stdout) == (True, "")


def test_processes_of_this_machine_are_out_of_reach(bench: Bench) -> None:
    """They are neither seen, nor killed, nor traced."""
    code = f"""
import ctypes, os
print([pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 50])
for pid in ({os.getpid()}, {os.getppid()}):
    try: os.kill(pid, 9)
    except ProcessLookupError: print("none")
    print(ctypes.CDLL(None).ptrace(16, pid, 0, 0))"""
    ran = bench.python(code)

    assert ran.stdout.split() == ["[]", "none", "-1", "none", "-1"]


def test_no_secrets_of_the_parent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its environment, in any process that is seen, nor a file that it has open."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-of-this-test")
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        ran = bench.run("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ls -l /proc/[0-9]*/fd/ >&2")

    assert "a-secret" not in ran.stdout
    opened = {line.split(" -> ")[1].split(":")[0] for line in ran.stderr.splitlines() if " -> " in line}
    assert opened <= {"pipe", "anon_inode", "/proc/2/fd", "/proc/3/fd"}, ran.stderr


def test_no_way_to_more_rights(bench: Bench) -> None:
    """No capabilities, no user namespace with some, and programs that change the user change nothing."""
    ran = bench.run("sh", "-c", "grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status | cut -f 2;"
                    "unshare -U true 2> /dev/null && echo namespace; su -c id 2> /dev/null < /dev/null")  # fmt: skip

    assert ran.stdout.split() == ["0" * 16, "0" * 16, "1", "2"]


def test_calls_that_are_not_there(bench: Bench) -> None:
    """A user namespace by any of its calls, queues that the kernel keeps, keys, another root; threads and forks are."""
    numbers = {"x86_64": (56, 435, 272, 68, 250, 155, 425), "aarch64": (220, 435, 97, 186, 219, 41, 425)}
    refused = numbers[platform.machine()]
    code = f"""
import ctypes, os, threading
libc = ctypes.CDLL(None, use_errno=True)
for number in {refused}:
    libc.syscall(number, 0x10000011, 0, 0, 0, 0)
    print(ctypes.get_errno())
threading.Thread(target=print, args=("thread",)).start()
if os.fork() == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))"""
    ran = bench.python(code)

    assert ran.stdout.split() == ["38"] * len(refused) + ["thread", "7"], ran


def test_the_machine_cannot_be_changed(bench: Bench) -> None:
    """Neither its clock, nor its name, nor a file's owner or rights that count outside."""
    code = """
import os, socket, stat, time
for tried in (
    lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
    lambda: socket.sethostname("other"),
    lambda: os.setuid(0),
    lambda: os.setgroups([0]),
    lambda: os.nice(-1),
    lambda: os.chroot("/tmp"),
    lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)),
    lambda: os.open("/dev/mem", os.O_RDWR),
    lambda: os.chown("/sandbox", 0, 0),
    lambda: os.link("/usr/bin/su", "/tmp/su"),
):
    try: tried()
    except OSError: continue
    print("done")
open("mine", "w").close()
os.chmod("mine", 0o4755)
print([line.split()[3] for line in open("/proc/self/mounts") if "nosuid" not in line.split()[3]])"""
    ran = bench.python(code)

    assert ran.stdout.split() == ["[]"], ran


def test_children_that_hide_end_with_the_command(either: Bench) -> None:
    """A daemon in a session of its own is gone, and could write nothing into the next command's time."""

    async def use(sandbox: Sandbox) -> tuple[Ran, Ran]:
        daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  time.sleep(30)\n"
        first = await sandbox.run(["python3", "-c", daemon])
        return first, await sandbox.run(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])

    first, second = either(use)

    assert first.ok
    assert first.seconds < 10.0
    assert int(second.stdout) <= 5


@pytest.mark.parametrize(
    ("script", "ending", "code"),
    [
        ("exit 255", Ending.EXITED, 255),
        ("kill -SEGV $$", Ending.KILLED, None),
        ("kill -9 -1; kill -9 $$", Ending.KILLED, None),
        ("exec <&- >&- 2>&-; exit 4", Ending.EXITED, 4),
        ("exec no-such-program", Ending.EXITED, 127),
        ("chmod 000 / /sandbox /tmp /dev/shm; exit 0", Ending.EXITED, 0),
    ],
)
def test_every_end_has_a_type(bench: Bench, script: str, ending: Ending, code: int | None) -> None:
    """And the sandbox is as good as before, whatever a command did to its folder or its processes."""

    async def use(sandbox: Sandbox) -> tuple[Ran, Ran]:
        return (await sandbox.run(["sh", "-c", script]), await sandbox.run(["sh", "-c", "touch x && ls"]))

    ran, after = bench(use)

    assert (ending, code) == (ran.ending, ran.exit_code)
    assert after.stdout == "x\n"


def test_standard_input_that_nobody_reads(bench: Bench) -> None:
    """More than a pipe holds, for a command that ends at once."""
    ran = bench.run("true", stdin=bytes(1 << 20))

    assert ran.ok


def test_binary_output(bench: Bench) -> None:
    """What is no UTF-8 is replaced; a file keeps its bytes."""

    async def use(sandbox: Sandbox) -> tuple[Ran, bytes]:
        ran = await sandbox.run(["sh", "-c", r"printf '\377\000a' | tee data"])
        return ran, await sandbox.read("data")

    ran, data = bench(use)

    assert (ran.stdout, data) == ("�\0a", b"\xff\0a")


def test_reading_and_writing_stay_in_the_folder(bench: Bench) -> None:
    """Links that lead out, pipes that block, folders and paths from elsewhere are refused."""

    async def use(sandbox: Sandbox) -> str:
        await sandbox.run(["sh", "-c", "ln -s /etc link; ln -s /tmp out; mkfifo pipe; mkdir folder; ln -s loop loop"])
        for path in ("link", "link/passwd", "../etc/passwd", "/etc/passwd", "pipe", "folder", "", ".", "loop", "none"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        for path in ("out/x", "../x", "/tmp/x", "folder", ""):
            with pytest.raises(SandboxError):
                await sandbox.write(path, b"1")
        return (await sandbox.run(["ls", "/tmp"])).stdout

    assert bench(use) == ""


def test_a_link_in_place_of_a_file_is_replaced(bench: Bench) -> None:
    """What it leads to is not written."""

    async def use(sandbox: Sandbox) -> tuple[bytes, str]:
        await sandbox.run(["sh", "-c", "echo other > /tmp/other; ln -s /tmp/other file"])
        await sandbox.write("file", b"mine")
        return await sandbox.read("file"), (await sandbox.run(["cat", "/tmp/other"])).stdout

    assert bench(use) == (b"mine", "other\n")


def test_a_file_too_large_is_an_error_of_the_caller(bench: Bench) -> None:
    """The disk of the sandbox is full."""

    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match="cannot be written"):
            await sandbox.write("file", bytes((ROOMY.disk_mb << 20) + 1))

    bench(use)


def test_sixteen_at_once(either: Bench) -> None:
    """Sandboxes neither see each other nor wait for each other, hostile ones among them."""
    commands = [
        ["python3", "-c", BOMB],
        ["python3", "-c", "while True: pass"],
        ["python3", "-c", "hold = []\nwhile True: hold.append(bytearray(1 << 20))"],
        ["sh", "-c", "echo $MINE > mine; ls; cat mine"],
    ]

    async def one(provider: LocalProvider, number: int) -> Ran:
        sandbox = await provider.open(Limits(timeout_s=8.0, memory_mb=64, processes=16, disk_mb=8))
        seconds = 8.0 if number % 4 > 1 else 1.0
        return await sandbox.run(commands[number % 4], environment={"MINE": str(number)}, timeout_s=seconds)

    async def all_of_them() -> list[Ran]:
        provider = either.provider()
        try:
            return await asyncio.gather(*(one(provider, number) for number in range(16)))
        finally:
            await provider.close()

    for number, ran in enumerate(asyncio.run(all_of_them())):
        if number % 4 == 3:
            assert ran.stdout == f"mine\n{number}\n"
        else:
            assert not ran.ok


def test_nothing_lies_in_temporary_folders(bench: Bench) -> None:
    """The files of a sandbox are in its own memory."""
    before = set(Path(tempfile.gettempdir()).iterdir())
    bench(lambda sandbox: sandbox.write("a-file-of-this-test", b"1"))

    assert not [name for name in set(Path(tempfile.gettempdir()).iterdir()) - before if "sandbox" in name.name]
