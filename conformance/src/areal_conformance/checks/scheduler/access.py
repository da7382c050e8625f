"""Who may talk to a worker: its controller, over loopback, with keys nobody else can see.

Knows: listening addresses, a stranger without a key, and what other users of the machine can read.
Does not know: how a controller proves itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import pickle
import re
import resource
import select
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import zmq

from areal_conformance.benches.base import SOON_S
from areal_conformance.benches.process import listening
from areal_conformance.benches.scheduler import CALL_S, SchedulerBench, ask, asking
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB, WORKER
from areal_conformance.outcome import expect
from areal_conformance.probes.engine import Trap
from areal_conformance.probes.processes import descendants
from areal_core.contract.scheduler import Scheduler
from areal_worker.codec import encode

_WAIT_MS = 500
_ENOUGH = 64 << 20
"""Bytes, more than the system takes for who does not read them."""
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)
_KEY_LIKE = re.compile(r"[A-Za-z0-9+=.:^!*?&<>()\[\]{}@%$#_-]{32,}")


@check("scheduler.access.loopback", level=Level.SINGLE, law=11, spec=WORKER)
async def loopback(bench: SchedulerBench) -> None:
    """Workers and controller listen on loopback only; on other machines, where the workers' handles tell."""
    async with bench.scheduler() as scheduler:
        before = listening(os.getpid())
        workers = await bench.start(scheduler, bench.job(num_workers=2))
        found = listening(os.getpid()) - before
        for pid in _family(scheduler):
            found |= listening(pid)
        hosts = {socket.gethostbyname(worker.host) for worker in workers}
        told = hosts if bench.target.claimed("hosts.spread") else set()
        open_to_all = [one for one in found if one[0] not in told and not _is_loopback(one[0])]
        expect(not open_to_all, f"listening where others can connect: {open_to_all}")
        if found and not told:
            reached = all(map(_is_loopback, hosts))
            expect(reached, f"workers listen on loopback and tell they are at {hosts}")


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


@check("scheduler.access.where_told", level=Level.SINGLE, law=11, spec=WORKER, since=(1, 1))
async def where_told(bench: SchedulerBench) -> None:
    """A worker listens at the address its handle tells and at no other one."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job(num_workers=2))
        for worker, status in zip(workers, scheduler.poll("probe"), strict=True):
            pids = [status.pid, *descendants(status.pid)] if status.pid else []
            elsewhere = sorted(place for pid in pids for place in listening(pid) if place[0] != worker.host)
            expect(not elsewhere, f"{worker.id} is at {worker.host}, and listens at {elsewhere}")


@check("scheduler.access.stranger", level=Level.SINGLE, law=11, spec=WORKER)
async def stranger(bench: SchedulerBench) -> None:
    """A peer without the run's key gets no call through and no answer, and does no harm."""
    trace = bench.folder / "unpickled"
    async with bench.scheduler() as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        before = (await worker.call("status", timeout_s=CALL_S)).metrics["calls"]
        where = {place for pid in _family(scheduler) for place in listening(pid)}
        for host, port in sorted(where):
            await asyncio.to_thread(_shout, host, port, pickle.dumps(Trap(str(trace))))
            taken = await asyncio.to_thread(_pour, host, port)
            expect(taken < _ENOUGH, f"a stranger sent {taken} bytes to {host}:{port} in one message, and is heard on")
            answer = await asyncio.to_thread(_call_without_key, host, port)
            expect(answer is None, f"a stranger's call to {host}:{port} was answered: {answer!r}")
        after = (await worker.call("status", timeout_s=CALL_S)).metrics["calls"]
        expect(after == before, f"{after - before:g} calls of a stranger reached the engine")
        expect(not trace.exists(), "what a stranger sent was unpickled")
        expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use after a stranger came")


_FILES, _STRANGERS = 128, 200
"""How many files a process may open where the workers are started; and at each of their ports, more than that."""
_LOOK_S, _QUIET = 0.02, 20
"""Between two looks at who was let in, and how many without a change are enough."""


@check("scheduler.access.crowd", level=Level.SINGLE, law=11, spec=WORKER, since=(1, 1))
async def crowd(bench: SchedulerBench) -> None:
    """More idle strangers than a process may open files take nothing from a worker, nor from who comes after them."""
    async with bench.scheduler() as scheduler:
        with _few_files():
            (worker,) = await bench.start(scheduler, bench.job())
        ports = sorted({place for pid in _family(scheduler) for place in listening(pid)})
        greeting = [place for place in ports if await _is_greeted(*place)]
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(_connecting(*place)) for place in ports for _ in range(_STRANGERS)]
            await _arrived(idle)
            given = await bench.soon(ask(worker, "echo", value=5), f"a call beside {len(idle)} strangers")
            expect(given == {"value": 5}, f"beside {len(idle)} strangers echo of 5 gave {given}")
            await bench.soon(bench.spawn(worker), f"a process that the worker starts beside {len(idle)} strangers")
        late = bench.deadline(SOON_S)
        for place in greeting:
            while not await _is_greeted(*place):
                if not late.left():
                    raise late.late(f"{len(idle)} strangers came to {place} and left, and since then nobody is let in")
        if not ports:
            bench.notes.append("its workers listen nowhere: no stranger can connect")


@contextlib.contextmanager
def _few_files() -> Iterator[None]:
    """Let processes started meanwhile have the limit on open files that a shell may have; it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(_FILES, _highest() + _FILES // 2), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _highest() -> int:
    """Return the highest descriptor this process has open."""
    with contextlib.closing(socket.socket()) as one:
        return one.fileno()


@contextlib.contextmanager
def _connecting(host: str, port: int) -> Iterator[socket.socket]:
    """Begin to connect, and say nothing."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind) as line:
        line.setblocking(False)
        line.connect_ex((host, port))
        yield line


async def _is_greeted(host: str, port: int) -> bool:
    """Tell whether somebody who connects and says nothing hears anything."""
    with _connecting(host, port) as line:
        return await _arrived([line]) > 0


async def _arrived(idle: Sequence[socket.socket]) -> int:
    """Wait until for a while no further one was greeted or hung up on; return how many were."""
    poller, seen, quiet = select.poll(), 0, 0
    for line in idle:
        poller.register(line, select.POLLIN)
    while seen < len(idle) and quiet < _QUIET:
        await asyncio.sleep(_LOOK_S)
        now = len(poller.poll(0))
        seen, quiet = now, quiet + 1 if now == seen else 0
    return seen


_COLLECTIVES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_RAS = "NCCL_RAS_ENABLE"


@check("scheduler.access.collectives", level=Level.SINGLE, law=11, spec=WORKER, since=(1, 1))
async def collectives(bench: SchedulerBench) -> None:
    """Collectives are told the interface of the address a worker's handle tells, and NCCL to answer no stranger."""
    async with bench.scheduler() as scheduler:
        for worker in await bench.start(scheduler, bench.job(num_workers=2)):
            known = _interfaces(socket.gethostbyname(worker.host))
            if not known:
                bench.notes.append(f"{worker.host} is an address of another machine: its interface is not known here")
                continue
            seen = (await ask(worker, "facts", names=[*_COLLECTIVES, _RAS]))["env"]
            told = {name: seen.get(name, "").lstrip("=") for name in _COLLECTIVES if name not in os.environ}
            expect(known.issuperset(told.values()), f"{worker.id} is at {worker.host}, of {known}, and is told {told}")
            expect(_RAS in os.environ or seen.get(_RAS) == "0", f"NCCL of {worker.id} tells anybody who asks how it is")


def _interfaces(host: str) -> set[str]:
    """Return the interfaces of this machine that have an address, or the one of loopback if it is such an address."""
    found = set()
    for name, own in psutil.net_if_addrs().items():
        mine = [one.address for one in own if one.family in (socket.AF_INET, socket.AF_INET6)]
        if host in mine or (_is_loopback(host) and any(map(_is_loopback, mine))):
            found.add(name)
    return found


@check("scheduler.access.secrets", level=Level.SINGLE, law=11, spec=JOB)
async def secrets(bench: SchedulerBench) -> None:
    """No key is in a worker's arguments, environment or log, where others may read it."""
    async with bench.scheduler() as scheduler:
        await bench.start(scheduler, bench.job(num_workers=2, env={"PROBE_PLAIN": "yes"}))
        for pid in _family(scheduler):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                for argument in process.cmdline():
                    expect(not _like_a_key(argument), f"an argument of a worker looks like a key: {argument[:8]}...")
                for name, value in process.environ().items():
                    if os.environ.get(name) == value:
                        continue
                    told = f"the scheduler gives its workers {name}"
                    expect(not (value and _SECRET_NAME.search(name)), f"{told}, which others may read")
                    expect(not _like_a_key(value), f"{told}, which looks like a key: {value[:8]}...")
        for status in scheduler.poll("probe"):
            for word in (await asyncio.to_thread(Path(status.log_path).read_text)).split():
                expect(not _like_a_key(word), f"the log of {status.id} holds what looks like a key: {word[:8]}...")


def _family(scheduler: Scheduler) -> list[int]:
    pids = [status.pid for status in scheduler.poll("probe") if status.pid]
    return [*pids, *(child for pid in pids for child in descendants(pid))]


def _like_a_key(text: str) -> bool:
    """Tell whether a text without a path in it is long and mixed, as keys in hex, base64 or Z85 are."""
    for part in re.split(r"[/\s,;'\"]", text):
        for found in _KEY_LIKE.findall(part):
            letters = any(c.isalpha() for c in found)
            mixed = any(c.isupper() for c in found) and any(c.islower() for c in found)
            hexadecimal = re.fullmatch(r"[0-9a-fA-F]{32,}", found) is not None
            if any(c.isdigit() for c in found) and letters and (mixed or hexadecimal):
                return True
    return False


def _shout(host: str, port: int, payload: bytes) -> None:
    """Send what a scanner or an attacker sends first."""
    for data in (b"GET / HTTP/1.0\r\n\r\n", payload, b"\x00" * 64):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(data)


def _pour(host: str, port: int) -> int:
    """Announce a message of 2 GiB as a peer of ZeroMQ does and begin to send it; return how much was taken."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    taken = 0
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0) as connection:
        connection.sendall(greeting + b"\x06" + (2 << 30).to_bytes(8, "big"))
        while taken < _ENOUGH:
            taken += connection.send(bytes(1 << 20))
    return taken


def _call_without_key(host: str, port: int) -> list[bytes] | None:
    """Make a call as the core's own controller does, without a key; return the answer, None if there is none."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{host}:{port}")
        head = msgspec.msgpack.encode((0, 1, "generate"))
        body = encode((asking("open", gate="stranger"),))
        with contextlib.suppress(zmq.Again):
            dealer.send_multipart([head, *body], zmq.NOBLOCK)
            if dealer.poll(_WAIT_MS):
                answer: list[bytes] = dealer.recv_multipart(zmq.NOBLOCK)
                return answer
    return None
