"""What another user of this machine can do to a run: nothing, not even take its descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import zmq
from tests.benches.strangers import as_nobody, can_be_nobody, entered, named_sockets

from areal_conformance.benches.process import listening
from areal_conformance.probes.processes import descendants
from areal_core.contract import Job
from areal_core.contract.errors import ResourceError
from areal_local.scheduler.channel import PIECE_BYTES, KeyPair, connected, doorkeeper
from areal_local.scheduler.channel import listening as bound
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.crowd import bound_crowd
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.private_folder import PrivateFolder, private_roots

ENGINES = str(Path(__file__).with_name("engines.py"))
JOB = Job(role="rollout", engine_role="infer", backend="probe", num_workers=2, imports=(ENGINES,))

only_root = pytest.mark.skipif(not can_be_nobody(), reason="only root can become another user")


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder with a short path, which pytest's own need not have."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def _family() -> list[int]:
    return [os.getpid(), *descendants(os.getpid())]


@only_root
def test_workers_of_one_machine_listen_where_no_other_user_can_connect(tmp_path: Path) -> None:
    """No port is open, and each Unix socket is in a folder that `nobody` cannot enter; its owner can."""

    async def run() -> tuple[set[tuple[str, int]], list[str], list[str]]:
        before = named_sockets(_family())
        scheduler = LocalScheduler(LocalConfig(log_dir=str(tmp_path)))
        try:
            await scheduler.submit(JOB)
            ports = {place for status in scheduler.poll("rollout") for place in listening(status.pid)}
            sockets = sorted(named_sockets(_family()) - before)
            return ports, await asyncio.to_thread(entered, sockets), as_nobody(lambda: entered(sockets))
        finally:
            await scheduler.close()

    ports, mine, theirs = asyncio.run(run())

    assert ports == set()
    assert len(mine) == 4, "two workers, each with calls and signs of life"
    assert theirs == []


def test_workers_listen_on_ports_where_the_user_asks_for_a_network(tmp_path: Path) -> None:
    """`listen_on_all` and an address of another machine are not served by Unix sockets."""
    everywhere = LocalScheduler(LocalConfig(log_dir=str(tmp_path), listen_on_all=True))
    elsewhere = LocalScheduler(LocalConfig(log_dir=str(tmp_path), host="192.0.2.1"))
    here = LocalScheduler(LocalConfig(log_dir=str(tmp_path), host="127.0.0.2"))

    folder = here.folder(JOB, 0)
    assert (everywhere.folder(JOB, 0), elsewhere.folder(JOB, 0)) == (None, None)
    assert folder is not None and stat.S_IMODE(Path(folder).stat().st_mode) == 0o700

    for scheduler in (everywhere, elsewhere, here):
        asyncio.run(scheduler.close())
    assert not Path(folder).exists()


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_workers_listen_on_every_interface_of_ipv6_for_a_host_of_it(tmp_path: Path) -> None:
    """What listens at every address of IPv4 is not reached at one of IPv6."""

    async def run() -> tuple[str, set[str]]:
        scheduler = LocalScheduler(LocalConfig(log_dir=str(tmp_path), host="::1", listen_on_all=True))
        try:
            (worker,) = await scheduler.submit(attrs.evolve(JOB, role="actor", engine_role="train", num_workers=1))
            (status,) = scheduler.poll("actor")
            place = await worker.call("rendezvous", worker.host, False, timeout_s=60.0)
            return place, {address for address, _ in listening(status.pid)}
        finally:
            await scheduler.close()

    place, addresses = asyncio.run(run())

    assert place.startswith("tcp://[::1]:")
    assert addresses == {"::"}


def test_a_folder_whose_owner_is_dead_is_swept_and_one_in_use_is_not(root: Path) -> None:
    """The lock is the kernel's: it goes with the process, and no number of a process is believed."""
    child = os.fork()
    if not child:
        PrivateFolder([root])
        os._exit(0)
    os.waitpid(child, 0)
    (left,) = root.iterdir()
    (left / "7").touch()

    first = PrivateFolder([root])
    second = PrivateFolder([root])

    assert sorted(root.iterdir()) == sorted([first.path, second.path])
    second.close()
    second.close()
    assert list(root.iterdir()) == [first.path]
    first.close()


def test_a_folder_too_deep_for_a_socket_is_passed_over(root: Path) -> None:
    """An address of a Unix socket has 107 bytes; the next folder is taken, and with none left it says what to set."""
    deep = root / ("d" * 90)
    deep.mkdir()

    folder = PrivateFolder([deep, root / "absent", root])
    assert folder.path.parent == root
    folder.close()
    with pytest.raises(ResourceError, match=r"too long for a Unix socket(.|\n)*No such file(.|\n)*set TMPDIR"):
        PrivateFolder([deep, root / "absent"])


def test_a_runtime_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """`sudo` keeps the variable of the user before: who owns the folder could rename what is in it."""
    assert private_roots({"XDG_RUNTIME_DIR": str(tmp_path)})[0] == tmp_path
    assert Path("/absent") not in private_roots({"XDG_RUNTIME_DIR": "/absent"})
    if can_be_nobody():
        os.chown(tmp_path, 65_534, 65_534)
        assert tmp_path not in private_roots({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_whoever_says_nothing_on_a_port_is_hung_up_on() -> None:
    """Where TCP stays, an idle connection costs a descriptor for seconds, not for the length of the run."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    keys = KeyPair.generate()
    keeper = doorkeeper(context, keys.public)
    held, port = bound(context, keys, "127.0.0.1")

    with socket.create_connection(("127.0.0.1", port), timeout=30.0) as idle:
        heard = b""
        while part := idle.recv(1024):
            heard += part

    assert heard.startswith(b"\xff"), "the greeting, and then the end"
    assert held.getsockopt(zmq.HANDSHAKE_IVL) <= 5000
    keeper.stop()
    context.destroy(linger=0)


def test_a_stranger_cannot_make_a_port_hold_more_than_a_piece() -> None:
    """Two gigabytes announced before the handshake are not read: the connection ends at the length."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    held, port = bound(context, KeyPair.generate(), "127.0.0.1")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    long_command = b"\x06" + (2 << 30).to_bytes(8, "big")
    enough, sent = 64 << 20, 0

    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=30.0) as stranger,
    ):
        stranger.sendall(greeting + long_command)
        while sent < enough:
            sent += stranger.send(bytes(1 << 20))

    assert sent < enough, "what fits into the buffers of the kernel, at most"
    assert held.getsockopt(zmq.MAXMSGSIZE) < 2 * PIECE_BYTES
    context.destroy(linger=0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux drops what comes")
def test_a_port_has_few_connections_at_once_and_takes_its_own_client_when_strangers_have_gone() -> None:
    """However many connect and say nothing: beyond the limit they wait outside and cost no descriptor."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    mine, keys = KeyPair.generate(), KeyPair.generate()
    keeper = doorkeeper(context, mine.public)
    held, port = bound(context, keys, "127.0.0.1")
    crowd = bound_crowd(held, port, limit=8)
    assert crowd is not None
    idle: list[socket.socket] = []
    with contextlib.suppress(TimeoutError):
        while len(idle) < 500:
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
            idle[-1].recv(1)

    assert 8 <= len(idle) < 500, "the kernel may have taken some more before it was told"

    for line in idle:
        line.close()
    client = connected(context, mine, keys.public, "127.0.0.1", port)
    client.send(b"here")
    held.setsockopt(zmq.RCVTIMEO, 60_000)
    assert held.recv_multipart()[1:] == [b"here"]
    held.close(linger=0)
    crowd.join()
    keeper.stop()
    context.destroy(linger=0)


def test_ranks_of_one_machine_are_told_to_meet_where_no_other_user_can_enter(tmp_path: Path) -> None:
    """In the folder of their sockets; at a port only where the user asks for a network."""

    async def run(**settings: bool) -> tuple[str, str | None]:
        scheduler = LocalScheduler(LocalConfig(log_dir=str(tmp_path), **settings))
        try:
            (worker,) = await scheduler.submit(attrs.evolve(JOB, role="actor", engine_role="train", num_workers=1))
            return await worker.call("rendezvous", worker.host, True, timeout_s=60.0), scheduler.folder(JOB, 0)
        finally:
            await scheduler.close()

    place, folder = asyncio.run(run())
    port, nowhere = asyncio.run(run(listen_on_all=True))

    assert place.startswith(f"file://{folder}/") and folder is not None
    assert port.startswith("tcp://127.0.0.1:") and nowhere is None


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    """A worker in a container of its own cannot bind there: the error names the folder and what is wrong."""

    class Elsewhere(LocalScheduler):
        def folder(self, job: Job, rank: int) -> str | None:
            return "/absent/sockets"

    async def run() -> None:
        scheduler = Elsewhere(LocalConfig(log_dir=str(tmp_path)))
        try:
            await scheduler.submit(attrs.evolve(JOB, num_workers=1))
        finally:
            await scheduler.close()

    with pytest.raises(ResourceError, match=r"/absent/sockets(.|\n)*must see this folder"):
        asyncio.run(run())


def test_a_worker_on_a_network_has_room_for_connections_that_are_not_let_in(tmp_path: Path) -> None:
    """Its limit on descriptors is raised as far as the system lets it; one with Unix sockets is left as it was."""

    async def run(**settings: bool) -> int:
        scheduler = LocalScheduler(LocalConfig(log_dir=str(tmp_path), **settings))
        try:
            await scheduler.submit(attrs.evolve(JOB, num_workers=1))
            (status,) = scheduler.poll("rollout")
            assert status.pid is not None
            return resource.prlimit(status.pid, resource.RLIMIT_NOFILE)[0]
        finally:
            await scheduler.close()

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        soft = asyncio.run(run(listen_on_all=True)), asyncio.run(run())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert soft == (min(before[1], 65_536), 1024)
