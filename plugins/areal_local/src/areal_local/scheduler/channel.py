"""An encrypted ZeroMQ socket in an asyncio loop: whole messages in, whole messages out.

Knows: sockets of a machine or a network, CURVE keys, who is let in, and how libzmq's edge-triggered descriptor meets
an event loop.
Does not know: what messages mean (`rpc`) or how they are encoded (`codec`).

Driving the socket directly is several times faster than `zmq.asyncio`, which makes futures for every frame. Small
messages of one turn of the loop travel as one: what a message costs is the system's, and both ends' threads'.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq
import zmq.auth.thread
from attrs import field, frozen

from areal_core.contract.errors import ResourceError
from areal_local.scheduler.private_folder import NAME_DIGITS
from areal_worker.codec import MAX_MESSAGE_BYTES, Frame

Receive = Callable[[list[Frame]], None]

ZERO_COPY_BYTES = 1 << 16
"""Frames from this size on are handed to libzmq in place; below, a copy is cheaper."""
MAX_MESSAGES_PER_TURN = 8
"""So that a flood of messages does not starve the rest of the loop: what each begins takes some tenths of a
millisecond, and a step of training waits for ten turns."""
MAX_BUNDLE = 64
"""Messages in a bundle at most."""
PIECE_BYTES = 1 << 16
"""Over TCP a frame travels in pieces of this size and a shorter last one. A larger one is refused before it is read:
libzmq would take it from anybody, for it has one limit for all that arrives, before and after the handshake."""
BUNDLE = b"\xc1"
"""Begins the one frame of a bundle of messages; no message of msgpack begins so."""
BUNDLE_BYTES = 1 << 15
"""A message from this size on travels alone, and so much of smaller ones goes into a bundle, about."""
_EVENTS, _MORE = int(zmq.EVENTS), int(zmq.RCVMORE)
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""As plain numbers: asking libzmq with zmq's own enums takes twice as long."""
_SEAL_BYTES = 64
"""More than CURVE adds to a piece."""
_HANDSHAKE_MS = 5000
"""Whoever has not proved its key by then is hung up on, so that idle strangers cannot pile up."""


@frozen(kw_only=True)
class KeyPair:
    """One CURVE key pair, Z85 text. The secret never appears in a repr."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> KeyPair:
        """Make a new pair from the system's randomness."""
        public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode())


def listening(
    context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, host: str, *, of_ipv6: bool = False
) -> tuple[zmq.Socket[bytes], int]:
    """Return a ROUTER bound to a free port of this address and of no other, and the port.

    "*" is every address of IPv4, and of both kinds with `of_ipv6`.

    The absolute path of a folder is an address, too: a port is then a Unix socket there that has the number for a
    name, and only who may enter the folder can connect. Whoever connects must know the public key and be admitted by
    `doorkeeper`.

    Raises:
        ResourceError: it is no address of this machine, or no port is free.
    """
    socket = context.socket(zmq.ROUTER)
    _set_limits(socket, host)
    socket.setsockopt(zmq.IPV6, of_ipv6)
    socket.curve_server = True
    socket.curve_secretkey = keys.secret.encode()
    socket.curve_publickey = keys.public.encode()
    try:
        socket.bind(_endpoint(socket, host, secrets.randbelow(10**NAME_DIGITS) if _is_folder(host) else "*"))
    except zmq.ZMQError as exc:
        socket.close(linger=0)
        raise ResourceError(
            f"no port of {host} could be bound",
            why=str(exc),
            fix="the worker must see this folder of its controller"
            if _is_folder(host)
            else "set scheduler.options.host to an address of the machine the workers run on",
        ) from exc
    bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return socket, int(bound.rpartition("/" if _is_folder(host) else ":")[2])


def connected(
    context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, server_public: str, host: str, port: int
) -> zmq.Socket[bytes]:
    """Return a DEALER that talks only to the holder of the server's secret key."""
    socket = context.socket(zmq.DEALER)
    _set_limits(socket, host)
    socket.curve_serverkey = server_public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.curve_publickey = keys.public.encode()
    socket.connect(_endpoint(socket, host, port))
    return socket


def _is_folder(host: str) -> bool:
    return host.startswith("/")


def _endpoint(socket: zmq.Socket[bytes], host: str, port: int | str) -> str:
    if _is_folder(host):
        return f"ipc://{host}/{port}"
    if ":" not in host:
        return f"tcp://{host}:{port}"
    socket.setsockopt(zmq.IPV6, 1)
    return f"tcp://[{host}]:{port}"


def doorkeeper(context: zmq.Context[zmq.Socket[bytes]], client_public: str) -> zmq.auth.thread.ThreadAuthenticator:
    """Start the thread that admits the one client with this public key to every server socket of the context."""
    keeper = zmq.auth.thread.ThreadAuthenticator(context)
    keeper.start()
    keeper.configure_curve_callback(domain="*", credentials_provider=_OneClient(client_public))
    return keeper


class _OneClient:
    def __init__(self, public: str) -> None:
        self._public = zmq.utils.z85.decode(public)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Tell whether the key that proved itself in the handshake is this run's."""
        return zmq.utils.z85.decode(key) == self._public


def _set_limits(socket: zmq.Socket[bytes], host: str) -> None:
    # Calls in flight bound the memory; a full queue would block the loop or drop a reply.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES if _is_folder(host) else PIECE_BYTES + _SEAL_BYTES)


class Channel:
    """Owns one socket. `receive` is called in the loop with every message that arrives, as a list of frames.

    The first `num_plain` frames arrive as bytes, the others as writable views of libzmq's memory, or of what pieces
    that came over TCP were put together in. With `bundles` both ends put small messages of a turn together: those that
    are bytes, which nobody can change before they are sent. The first frame over an `addressed` socket says who is
    meant, or who sent it.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Receive,
        *,
        num_plain: int,
        bundles: bool = False,
        addressed: bool = False,
    ) -> None:
        self._socket = socket
        self._receive = receive
        self._num_plain = num_plain
        self._bundles, self._num_addresses = bundles, int(addressed)
        self._bundle: dict[Frame, list[Sequence[Frame]]] = {}
        self._bundled_bytes = 0
        self._opened: deque[list[Frame]] = deque()  # messages of a bundle that wait for their turn
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._closed = False
        self._in_pieces = socket.getsockopt_string(zmq.LAST_ENDPOINT).startswith("tcp://")
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        self._wake()

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue one message and never block; False if there is no peer, because a handshake was refused.

        Large frames are read by libzmq's thread later: leave them alone until the message was answered.
        """
        plain = self._bundles and all(type(frame) is bytes for frame in frames)
        size = sum(map(len, frames)) if plain else BUNDLE_BYTES
        if size >= BUNDLE_BYTES:
            self._send_bundles()
            return self._send_now(frames)
        if not self._bundle:
            if not self._is_ready(_OUT):
                self._wake()
                return False
            self._loop.call_soon(self._send_bundles)
        address = frames[0] if self._num_addresses else b""
        waiting = self._bundle.setdefault(address, [])
        waiting.append(frames[self._num_addresses :])
        self._bundled_bytes += size
        if self._bundled_bytes >= BUNDLE_BYTES or len(waiting) == MAX_BUNDLE:
            self._send_bundles()
        return True

    def _send_bundles(self) -> None:
        """Send what waits for the end of this turn, a message for each address, in the order it came."""
        bundles, self._bundle, self._bundled_bytes = self._bundle, {}, 0
        if self._closed:
            return
        for address, messages in bundles.items():
            to = [address] if self._num_addresses else []
            self._send_now([*to, *(messages[0] if len(messages) == 1 else [BUNDLE + _pack(messages)])])

    def _send_now(self, frames: Sequence[Frame]) -> bool:
        pieces = [piece for frame in frames for piece in _cut(frame)] if self._in_pieces else frames
        last = len(pieces) - 1
        try:
            for number, piece in enumerate(pieces):
                flags = _NOW_AND_MORE if number < last else _NOW
                self._socket.send(piece, flags, copy=_size(piece) < ZERO_COPY_BYTES)
        except zmq.Again:
            return False
        # Sending may swallow the descriptor's edge for a message that arrived meanwhile.
        self._wake()
        return True

    def close(self) -> None:
        """Stop listening and drop what was not sent. Idempotent."""
        if not self._closed:
            self._send_bundles()
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)

    def _is_ready(self, event: int) -> bool:
        return bool(int(self._socket.getsockopt(_EVENTS)) & event)

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        with contextlib.suppress(zmq.Again):
            for _ in range(MAX_MESSAGES_PER_TURN):
                if self._closed or (frames := self._next()) is None:
                    return
                self._receive(frames)
            self._wake()

    def _next(self) -> list[Frame] | None:
        """Return the message that came first, whatever it came in; None if there is none."""
        while not self._opened:
            if not self._is_ready(_IN):
                return None
            *addresses, last = frames = self._take()
            alone = len(addresses) == self._num_addresses
            if not (self._bundles and alone and isinstance(last, bytes) and last.startswith(BUNDLE)):
                return frames
            with contextlib.suppress(msgspec.MsgspecError):  # no end of ours made it
                self._opened.extend([*addresses, *message] for message in _unpack(memoryview(last)[1:]))
        return self._opened.popleft()

    def _take(self) -> list[Frame]:
        frames: list[Frame] = []
        while not frames or self._socket.getsockopt(_MORE):
            frames.append(self._whole(plain=len(frames) < self._num_plain))
        return frames

    def _whole(self, *, plain: bool) -> Frame:
        pieces = [self._piece(plain)]
        if not self._in_pieces or _size(pieces[0]) != PIECE_BYTES:
            return pieces[0]
        while _size(pieces[-1]) == PIECE_BYTES and self._socket.getsockopt(_MORE):
            pieces.append(self._piece(plain))
        return b"".join(pieces) if plain else memoryview(bytearray().join(pieces))

    def _piece(self, plain: bool) -> Frame:
        return self._socket.recv(_NOW) if plain else self._socket.recv(_NOW, copy=False).buffer


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[list[bytes]]).decode


def _size(frame: Frame) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


def _cut(frame: Frame) -> Sequence[Frame]:
    size = _size(frame)
    if size < PIECE_BYTES:
        return (frame,)
    view = memoryview(frame)
    return [view[start : start + PIECE_BYTES] for start in range(0, size + 1, PIECE_BYTES)]
