"""Weights are for the run's own processes: nothing unpickled, nothing for strangers, nothing outside.

Knows: the interpreter's audit events, file modes, listening sockets.
Does not know: which of them a transport uses.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import stat
import zipfile
from pathlib import Path

from areal_conformance.benches.process import audited, listening
from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_footprint import places, stores
from areal_conformance.benches.transport_tensors import SETS, noise, plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import arrives, same
from areal_conformance.oracles.spoil import Bomb
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError

_LOOPBACK = ("127.", "::1", "localhost")
_STRANGER_S = 1.0
_GREETINGS = (b"", b"\n" * 64, b"GET / HTTP/1.0\r\n\r\n", bytes(64), b'{"do": "get", "shelf": 1, "bytes": 0}\n')


@check("transport.safe.unpickled", level=Level.SINGLE, law=11, spec="weights")
def unpickled(bench: TransportBench) -> None:
    """No object is unpickled on the way, and no file of a version is a pickle."""
    for kind in ("plain", "shapes", "names"):
        with audited() as audit:
            controller, sender, receiver = bench.transport(), bench.transport(), bench.transport()
            offer = controller.open(1)
            tied = {"tied": next(iter(SETS[kind](1)))}
            bench.carry(controller, sender, [receiver], offer, SETS[kind](1), tied=tied)
            for path in stores(offer, bench.temporary):
                told = f"{path.name} is a pickle: who can write there can run code in every replica"
                expect(not _is_pickle(path), told)
            controller.release(offer)
        expect(not audit.unpickled, f"objects were unpickled: {sorted(set(audit.unpickled))[:5]}")


@check("transport.safe.bomb", level=Level.FAULTS, law=11, spec="weights", unless=("streams",))
def bomb(bench: TransportBench) -> None:
    """A pickle put in place of any stored file is not run, and reading fails with an ArealError."""
    spoiler, controller = Bomb(bench.folder), bench.transport()
    pickled = pickle.dumps(spoiler)
    offer = bench.sent(controller, plain(1))
    files = [path for path in stores(offer, bench.temporary) if path.is_file() and not str(path).startswith("/proc/")]
    if not files:
        bench.notes.append("the version lies in no file that could be replaced")
    for path in files:
        kept = path.read_bytes()
        for payload in (pickled, _archive(pickled)):
            path.write_bytes(payload.ljust(len(kept), b"\0"))
            with audited() as audit, contextlib.suppress(ArealError):
                bench.receive(bench.transport(), offer)
            expect(not spoiler.went_off, f"a pickle put in place of {path.name} was run by the receiver")
            expect(not audit.unpickled, f"a pickle put in place of {path.name} was unpickled: {audit.unpickled[:3]}")
        path.write_bytes(kept)
    same(plain(1), bench.receive(bench.transport(), offer), "after every file was put back")
    controller.release(offer)


@check("transport.safe.private", level=Level.SINGLE, law=11, spec="weights", unless=("streams",))
def private(bench: TransportBench) -> None:
    """Files and segments of a version can be read and written by their owner alone."""
    kept = os.umask(0o000)
    try:
        controller = bench.transport()
        offer = bench.sent(controller, plain(1))
        for path in stores(offer, bench.temporary):
            if str(path).startswith("/proc/"):
                continue  # the kernel guards what a process holds open
            above = [parent for parent in path.parents if bench.temporary in parent.parents] + [
                parent for parent in path.parents if parent in places(offer)
            ]
            modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, *above)]
            closed = any(not mode & 0o077 for mode in modes)
            expect(closed, f"{path.name} has mode {modes[0]:o} and no folder above it keeps others out")
        controller.release(offer)
    finally:
        os.umask(kept)


@check("transport.safe.loopback", level=Level.SINGLE, law=11, spec="weights")
def loopback(bench: TransportBench) -> None:
    """Whatever listens, listens on loopback."""
    with audited() as audit:
        controller = bench.transport()
        offer = controller.open(1)
        bench.carry(controller, bench.transport(), [bench.transport()], offer, plain(1))
        heard = {address for address, _ in listening()}
        controller.release(offer)
    wide = sorted(a for a in {*audit.bound, *heard} if not a.startswith(_LOOPBACK))
    expect(not wide, f"sockets were bound to {wide}, which other machines reach; bind to 127.0.0.1")


@check("transport.safe.stranger", level=Level.SINGLE, law=11, spec="weights", unless=("streams",))
def stranger(bench: TransportBench) -> None:
    """Who connects without the offer's secret gets no byte of the weights and disturbs nobody."""
    before = listening()
    tensors = {"secret": noise((4096,), "uint8", 77)}
    marker = bytes(tensors["secret"][100:116].tolist())
    controller = bench.transport()
    offer = bench.sent(controller, tensors)
    opened = listening() - before
    if not opened:
        bench.notes.append("nothing listens")
    for address in sorted(opened):
        for greeting in (*_GREETINGS, *(32 * b"\0" + _request(offer.location, do) for do in ("get", "manifest"))):
            heard = _hear(address, greeting)
            expect(marker not in heard, f"a stranger who sent {greeting[:40]!r} to {address} was given the weights")
            expect(b"secret" not in heard, f"a stranger who sent {greeting[:40]!r} to {address} was told tensor names")
        same(tensors, bench.receive(bench.transport(), offer), "after strangers called")
    controller.release(offer)
    for address in sorted(opened):
        _hear(address, b"\0" * 5)
    arrives(bench, controller, tensors, "the version after strangers called")


def _archive(payload: bytes) -> bytes:
    """Return a torch file, the format of `torch.save`, that holds the pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/version", "3")
    return buffer.getvalue()


def _is_pickle(path: Path) -> bool:
    head = path.open("rb").read(4)
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= pickle.HIGHEST_PROTOCOL:
        return True
    return (
        head == b"PK\x03\x04"
        and zipfile.is_zipfile(path)
        and any(name.endswith(".pkl") for name in zipfile.ZipFile(path).namelist())
    )


def _request(location: object, do: str) -> bytes:
    assert isinstance(location, dict)
    known = {key: value for key, value in location.items() if isinstance(value, int)}
    return json.dumps({**known, "do": do, "name": "secret", "version": 1, "bytes": 0}).encode() + b"\n"


def _hear(address: tuple[str, int], greeting: bytes) -> bytes:
    """Say something and listen until the other end hangs up or falls silent."""
    heard = b""
    try:
        with socket.create_connection(address, timeout=_STRANGER_S) as line:
            if greeting:
                line.sendall(greeting)
                line.shutdown(socket.SHUT_WR)
            else:
                line.settimeout(0.05)
            while (more := line.recv(65536)) and len(heard) < 1 << 20:
                heard += more
    except OSError:
        pass
    return heard
