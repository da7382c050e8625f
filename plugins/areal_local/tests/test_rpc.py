"""Calls over the encrypted channel: many at once, cancellable, bounded, and only for the holder of the run's key."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import torch
import zmq

from areal_core.contract.errors import (
    AuthenticationError,
    CodecError,
    GenerationFailed,
    RemoteError,
    ResourceError,
    WorkerDied,
    WorkerTimeout,
)
from areal_local.scheduler.channel import PIECE_BYTES, KeyPair, connected, doorkeeper, listening
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.rpc import RpcClient, RpcServer
from areal_worker.codec import encode

HOST = "127.0.0.1"
Handler = Callable[[str, tuple[Any, ...]], Awaitable[Any]]


class Pair:
    """A server and its client in one loop, over real sockets."""

    def __init__(self, handler: Handler) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.client_keys, self.server_keys = KeyPair.generate(), KeyPair.generate()
        self.keeper = doorkeeper(self.context, self.client_keys.public)
        socket, self.port = listening(self.context, self.server_keys, HOST)
        self.server = RpcServer(socket, handler)
        self.client = self.connect(self.client_keys)

    def connect(self, keys: KeyPair) -> RpcClient:
        return RpcClient("actor/0", HOST, connected(self.context, keys, self.server_keys.public, HOST, self.port))


@contextlib.asynccontextmanager
async def pair(handler: Handler) -> AsyncIterator[Pair]:
    made = Pair(handler)
    try:
        yield made
    finally:
        made.client.close()
        made.server.close()
        made.keeper.stop()
        made.context.destroy(linger=0)


async def echo(_method: str, args: tuple[Any, ...]) -> Any:
    return args


class Gate:
    """A handler whose calls wait until opened; it counts who runs and who was cancelled."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, _method: str, args: tuple[Any, ...]) -> Any:
        self.entered.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.left.set()
        return args


def test_arguments_and_results_arrive_unchanged() -> None:
    """What is sent comes back, tensors larger than the zero-copy bound too."""

    async def run() -> tuple[Any, ...]:
        async with pair(echo) as made:
            return await made.client.call("x", 1, (2, [3]), torch.arange(100_000), timeout_s=10)

    one, two, tensor = asyncio.run(run())

    assert (one, two) == (1, (2, [3]))
    assert torch.equal(torch.arange(100_000), tensor)


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_frames_arrive_whole_whatever_pieces_they_travelled_in(size: int) -> None:
    """Over TCP a frame is cut: the header of a call and tensors, of just a piece, a little more, a little less."""
    around = len(encode((bytes(size),))[0]) - size
    header, tensor = bytes(range(256)) * (size // 256 + 1), torch.arange(size).to(torch.uint8)

    async def run() -> tuple[Any, ...]:
        async with pair(echo) as made:
            (text,) = await made.client.call("x", header[: size - around], timeout_s=10)
            return text, *await made.client.call("x", tensor, 7, timeout_s=10)

    text, received, seven = asyncio.run(run())

    assert text == header[: size - around]
    assert torch.equal(received, tensor) and seven == 7
    assert received.add_(1) is received, "it can be written to"


def test_replies_find_their_calls_in_any_order() -> None:
    """A hundred calls at once that finish in reverse each get their own answer."""

    async def run() -> list[int]:
        turns = [asyncio.Event() for _ in range(101)]
        turns[100].set()

        async def handler(_method: str, args: tuple[Any, ...]) -> Any:
            await turns[args[0] + 1].wait()
            turns[args[0]].set()
            return args[0]

        async with pair(handler) as made:
            return await asyncio.gather(*(made.client.call("x", number, timeout_s=20) for number in range(100)))

    assert list(range(100)) == asyncio.run(run())


def test_cancelling_the_call_cancels_it_in_the_worker() -> None:
    """The coroutine in the worker ends by cancellation, and the client forgets the call."""

    async def run() -> tuple[int, int]:
        gate = Gate()
        async with pair(gate) as made:
            call = asyncio.create_task(made.client.call("x", timeout_s=30))
            await gate.entered.wait()
            call.cancel()
            await asyncio.wait([call])
            async with asyncio.timeout(10):
                await gate.left.wait()
            return gate.cancelled, made.client.num_in_flight

    assert asyncio.run(run()) == (1, 0)


def test_a_late_call_times_out_by_name_and_is_cancelled_in_the_worker() -> None:
    """The error names worker, method and seconds; the worker stops working on it."""

    async def run() -> int:
        gate = Gate()
        async with pair(gate) as made:
            with pytest.raises(WorkerTimeout, match=r"actor/0 did not answer 'train_step' within 0\.1 s"):
                await made.client.call("train_step", timeout_s=0.1)
            async with asyncio.timeout(10):
                await gate.left.wait()
            return gate.cancelled

    assert asyncio.run(run()) == 1


def test_contract_errors_arrive_as_themselves() -> None:
    """Class and texts survive, so that retrying can decide by class."""

    async def handler(_method: str, _args: tuple[Any, ...]) -> Any:
        raise GenerationFailed("lost it", why="the engine \ud800 said so", fix="again")

    async def run() -> None:
        async with pair(handler) as made:
            await made.client.call("x", timeout_s=10)

    with pytest.raises(GenerationFailed) as caught:
        asyncio.run(run())

    assert (caught.value.what, caught.value.why, caught.value.fix) == ("lost it", r"the engine \ud800 said so", "again")


@pytest.mark.parametrize("raised", [ZeroDivisionError("by zero"), asyncio.CancelledError()])
def test_other_exceptions_arrive_with_their_traceback(raised: BaseException) -> None:
    """What an engine raises, its own cancellation included, is a RemoteError that shows where."""

    async def handler(_method: str, _args: tuple[Any, ...]) -> Any:
        raise raised

    async def run() -> None:
        async with pair(handler) as made:
            await made.client.call("forward", timeout_s=10)

    with pytest.raises(RemoteError, match=f"'forward' raised {type(raised).__name__}") as caught:
        asyncio.run(run())

    assert "in handler" in caught.value.why


@pytest.mark.parametrize("returned", [object(), 2**80])
def test_a_result_that_does_not_travel_is_an_error_of_the_call(returned: object) -> None:
    """The caller learns of it at once instead of waiting for its deadline."""

    async def handler(_method: str, _args: tuple[Any, ...]) -> Any:
        return returned

    async def run() -> None:
        async with pair(handler) as made:
            await made.client.call("x", timeout_s=10)

    with pytest.raises(CodecError):
        asyncio.run(run())


def test_failing_a_client_ends_every_call_at_once_and_later_ones_too() -> None:
    """Each call raises its own exception object, and nothing waits for a deadline."""

    async def run() -> list[BaseException | None]:
        gate = Gate()
        async with pair(gate) as made:
            calls = [asyncio.create_task(made.client.call("x", timeout_s=600)) for _ in range(3)]
            await gate.entered.wait()
            made.client.fail(WorkerDied("worker actor/0 is gone"), final=True)
            await asyncio.wait(calls)
            with pytest.raises(WorkerDied):
                await made.client.call("x", timeout_s=600)
            return [call.exception() for call in calls]

    errors = asyncio.run(run())

    assert {type(error) for error in errors} == {WorkerDied}
    assert len({id(error) for error in errors}) == 3


@pytest.mark.parametrize("who", ["foreign key", "no encryption", "wrong server key"])
def test_only_this_runs_key_is_served(who: str) -> None:
    """Anyone else's calls never reach the handler; the run's own go on."""

    async def run() -> list[str]:
        reached: list[str] = []

        async def handler(method: str, _args: tuple[Any, ...]) -> Any:
            reached.append(method)

        async with pair(handler) as made:
            if who == "foreign key":
                stranger = made.connect(KeyPair.generate())
            elif who == "no encryption":
                socket = made.context.socket(zmq.DEALER)
                socket.connect(f"tcp://{HOST}:{made.port}")
                stranger = RpcClient("stranger/0", HOST, socket)
            else:
                other = KeyPair.generate().public
                stranger = RpcClient(
                    "stranger/0", HOST, connected(made.context, made.client_keys, other, HOST, made.port)
                )
            with pytest.raises(WorkerTimeout):
                await stranger.call("stolen", timeout_s=0.3)
            if who == "foreign key":
                with pytest.raises(AuthenticationError, match="refused the key"):
                    await stranger.call("stolen", timeout_s=0.3)
            stranger.close()
            await made.client.call("own", timeout_s=10)
        return reached

    assert asyncio.run(run()) == ["own"]


def test_a_server_without_the_secret_key_is_not_believed() -> None:
    """A client that expects one server hears nothing from an impostor on its port."""

    async def run() -> None:
        async with pair(echo) as made:
            impostor, port = listening(made.context, KeyPair.generate(), HOST)
            server = RpcServer(impostor, echo)
            client = RpcClient(
                "actor/0", HOST, connected(made.context, made.client_keys, made.server_keys.public, HOST, port)
            )
            try:
                await client.call("x", timeout_s=0.3)
            finally:
                client.close()
                server.close()

    with pytest.raises(WorkerTimeout):
        asyncio.run(run())


@pytest.mark.parametrize(
    "frames", [[b""], [b"\xc1"], [b"\x93\x00\x01\xa1x"], [b"\x93\x00\x01\xa1x", b"junk"], [b"a"] * 9]
)
def test_garbage_from_an_admitted_client_hurts_nobody(frames: list[bytes]) -> None:
    """The server survives what the protocol does not allow, and answers the next call."""

    async def run() -> Any:
        async with pair(echo) as made:
            socket = connected(made.context, made.client_keys, made.server_keys.public, HOST, made.port)
            socket.send_multipart(frames)
            answer = await made.client.call("x", 1, timeout_s=10)
            socket.close(linger=0)
            return answer

    assert asyncio.run(run()) == (1,)


def test_a_socket_listens_where_it_is_told_and_nowhere_else() -> None:
    """The port of one loopback address is free on another; an address of another machine is refused."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    held, port = listening(context, KeyPair.generate(), "127.0.0.2")

    with socket.create_server(("127.0.0.3", port)):
        assert held.getsockopt_string(zmq.LAST_ENDPOINT) == f"tcp://127.0.0.2:{port}"
    with pytest.raises(ResourceError, match=r"no port of 192\.0\.2\.1(.|\n)*scheduler\.options\.host"):
        listening(context, KeyPair.generate(), "192.0.2.1")

    context.destroy(linger=0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_at_once_is_refused_as_the_one_workers_are_told(host: str) -> None:
    """Law 11: to listen on every interface has a switch of its own."""
    with pytest.raises(ValueError, match="listen_on_all"):
        LocalConfig(host=host)


def test_keys_do_not_show_in_a_repr() -> None:
    """A key pair may end in a log; its secret must not."""
    keys = KeyPair.generate()

    assert keys.secret not in repr(keys)


def test_calls_in_flight_answers_and_missed_deadlines_are_told() -> None:
    """Whoever asks whether anything moves sees all calls but those for the status, which are made all the time."""

    async def run() -> tuple[list[str], list[str], int]:
        gate, late = Gate(), list[str]()
        async with pair(gate) as made:
            made.client.on_late = late.append
            calls = [asyncio.create_task(made.client.call(name, timeout_s=30)) for name in ("generate", "status")]
            await gate.entered.wait()
            waiting = [method for method, _ in made.client.in_flight]
            with pytest.raises(WorkerTimeout):
                await made.client.call("train_step", timeout_s=0.01)
            gate.opened.set()
            await asyncio.gather(*calls)
            assert made.client.in_flight == []
            return waiting, late, made.client.num_answered

    assert asyncio.run(run()) == (["generate"], ["train_step"], 1)
