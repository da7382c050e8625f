"""Calls to a worker: many at once, each with a deadline, each cancellable, each failing by name.

Knows: request ids, replies, cancellation, and what an error becomes on its way back.
Does not know: which methods exist (`service`), processes (`local_scheduler`) or bytes (`codec`, `channel`).

A request is [CALL, id, method] + codec frames of the arguments, or [CANCEL, id]; a reply is [OK | FAILED, id] +
codec frames of the result or the error. The first frame is msgpack; the server sees the client's address before it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
import zmq

from areal_core.contract.errors import (
    ArealError,
    AuthenticationError,
    CodecError,
    RemoteError,
    WorkerError,
    WorkerTimeout,
)
from areal_local.scheduler.channel import Channel, Receive
from areal_worker import schema
from areal_worker.codec import Frame, decode, encode

Handler = Callable[[str, tuple[Any, ...]], Awaitable[Any]]  # Any: whatever the contract's method takes and returns

logger = logging.getLogger(__name__)

_CALL, _CANCEL, _OK, _FAILED = range(4)
_STATUS = "status"
"""Asked all the time, whether anything moves or not."""
_FRAMES = 4
"""Of a remote traceback; people see them, and the worker's log has all."""

_envelope = msgspec.msgpack.Encoder().encode
_open_request = msgspec.msgpack.Decoder(tuple[int, int, str]).decode
_open_reply = msgspec.msgpack.Decoder(tuple[int, int]).decode


class Wire(Protocol):
    """What takes messages to a worker; it hands those that come back to whoever opened it."""

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue one message and never block; False if there is no peer."""

    def close(self) -> None:
        """Drop what was not sent. Idempotent."""


OpenWire = Callable[[Receive], Wire]


class RpcClient:
    """The controller's end: one per worker. Satisfies `contract.Worker`."""

    def __init__(self, worker_id: str, host: str, wire: zmq.Socket[bytes] | OpenWire) -> None:
        """Call over a socket of ZeroMQ, or over whatever `wire` opens."""
        self.id = worker_id
        self.host = host
        self.numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asked: dict[int, tuple[str, float]] = {}
        self.num_answered = 0
        """Calls that were answered, other than for the status: signs that something moves."""
        self.on_late: Callable[[str], None] = _nobody_cares
        """Called with a method whose call met its deadline, before its caller hears of it."""
        self._failure: ArealError | None = None
        self._ended = False
        self._channel: Wire = (
            Channel(wire, self._on_reply, num_plain=2, bundles=True)
            if isinstance(wire, zmq.Socket)
            else wire(self._on_reply)
        )

    @property
    def num_in_flight(self) -> int:
        """Return how many calls wait for their reply."""
        return len(self._waiting)

    @property
    def in_flight(self) -> Sequence[tuple[str, float]]:
        """Return the method of every call that waits for its reply, and how many seconds it does."""
        now = asyncio.get_running_loop().time()
        return [(method, now - since) for method, since in self._asked.values() if method != _STATUS]

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a method of the hosted engine; see `contract.Worker.call`."""
        if self._failure is not None:
            raise _copy(self._failure)
        loop = asyncio.get_running_loop()
        number, future = next(self.numbers), loop.create_future()
        body = encode(args)
        self._waiting[number], self._asked[number] = future, (method, loop.time())
        timer = loop.call_later(timeout_s, self._expire, future, method, timeout_s)
        answered = False
        try:
            if not self._channel.send([_envelope((_CALL, number, method)), *body]):
                raise AuthenticationError(
                    f"{self.id} does not take calls of this run",
                    why="the worker refused the key presented, or is not the worker expected",
                )
            result = await future
            answered = True
            return result
        finally:
            timer.cancel()
            answered = answered or number not in self._waiting
            self._waiting.pop(number, None)
            del self._asked[number]
            if not answered and not self._ended:
                self._channel.send([_envelope((_CANCEL, number, ""))])

    def fail(self, error: ArealError, *, final: bool) -> None:
        """End every call in flight with this error, and every later one until `recover`; final is for ever."""
        if not self._ended:
            self._failure, self._ended = error, final
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_copy(error))

    def recover(self) -> None:
        """Take calls again after a failure that was not final."""
        if not self._ended:
            self._failure = None

    def close(self) -> None:
        """Fail what is in flight and close the socket. Idempotent."""
        self.fail(
            WorkerError(f"{self.id} was closed", why="its scheduler cancelled the role or was closed"), final=True
        )
        self._channel.close()

    def _expire(self, future: asyncio.Future[Any], method: str, timeout_s: float) -> None:
        if not future.done():
            self.on_late(method)
            future.set_exception(
                WorkerTimeout(
                    f"{self.id} did not answer {method!r} within {timeout_s:g} s",
                    why="the call was cancelled in the worker",
                    fix="read its log; raise the timeout if the call is merely slow",
                )
            )

    def _on_reply(self, frames: list[Frame]) -> None:
        try:
            kind, number = _open_reply(frames[0])
        except (msgspec.MsgspecError, IndexError):
            return  # not from a server of ours; the call it was meant for meets its deadline
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        self.num_answered += self._asked[number][0] != _STATUS
        try:
            value = decode(frames[1:])
        except CodecError as exc:
            future.set_exception(exc)
            return
        if kind == _OK:
            future.set_result(value)
        else:
            future.set_exception(
                value
                if isinstance(value, ArealError)
                else CodecError(f"{self.id} failed with a {type(value).__name__}")
            )


class RpcServer:
    """The worker's end: runs `handler` once per call, as a task of its own."""

    def __init__(self, socket: zmq.Socket[bytes], handler: Handler) -> None:
        self._handler = handler
        self._tasks: dict[tuple[Frame, int], asyncio.Task[None]] = {}
        self._channel = Channel(socket, self._on_request, num_plain=3, bundles=True, addressed=True)

    def close(self) -> None:
        """Cancel every call and close the socket. Idempotent."""
        for task in self._tasks.values():
            task.cancel()
        self._channel.close()

    def _on_request(self, frames: list[Frame]) -> None:
        client = frames[0]
        try:
            kind, number, method = _open_request(frames[1])
        except (msgspec.MsgspecError, IndexError):
            return  # an admitted client that speaks another protocol; there is no call to answer
        key = (client, number)
        if kind == _CANCEL:
            if (task := self._tasks.get(key)) is not None:
                task.cancel()
        elif key not in self._tasks:
            self._tasks[key] = task = asyncio.get_running_loop().create_task(self._serve(key, method, frames[2:]))
            task.add_done_callback(lambda _: self._tasks.pop(key))  # one cancelled in its first turn never runs

    async def _serve(self, key: tuple[Frame, int], method: str, body: list[Frame]) -> None:
        client, number = key
        kind, reply = await self._run(method, body)
        self._channel.send([client, _envelope((kind, number)), *reply])

    async def _run(self, method: str, body: list[Frame]) -> tuple[int, list[Frame]]:
        try:
            return _OK, encode(await self._handler(method, decode(body)))
        except ArealError as exc:
            return _FAILED, encode(_with_clean_texts(exc))
        except asyncio.CancelledError as exc:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # a coroutine always runs in a task
                raise
            return _FAILED, encode(_remote(method, exc))  # the engine cancelled itself; the caller did not
        except Exception as exc:  # whatever an engine raises must reach the caller, with where it came from
            logger.exception("call %s raised", method)
            return _FAILED, encode(_remote(method, exc))


def _remote(method: str, exc: BaseException) -> ArealError:
    what = f"{method!r} raised {type(exc).__name__}: {exc}"
    last = "".join(traceback.format_exception(exc, limit=-_FRAMES, chain=False)).rstrip()
    return _with_clean_texts(RemoteError(what, why=last, fix="the whole traceback is in the worker's log"))


def _with_clean_texts(error: ArealError) -> ArealError:
    """Return the error with texts that are valid UTF-8, whatever an engine put into them."""
    what, why, fix = (
        str(text).encode("utf-8", "backslashreplace").decode() for text in (error.what, error.why, error.fix)
    )
    return schema.ERRORS[schema.error_name(type(error))](what, why=why, fix=fix)


def _nobody_cares(method: str) -> None:
    pass


def _copy(error: ArealError) -> ArealError:
    # One exception raised in many tasks would collect all their tracebacks.
    return type(error)(error.what, why=error.why, fix=error.fix)
