"""Small messages of one turn travel as one, in their order, and whoever asks cannot tell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

from areal_local.scheduler import channel
from areal_local.scheduler.channel import BUNDLE, BUNDLE_BYTES, Channel
from areal_local.scheduler.rpc import RpcClient, RpcServer
from areal_worker.codec import Frame

SIZES = st.sampled_from([0, 1, 20, 500, BUNDLE_BYTES // 2, BUNDLE_BYTES - 1, BUNDLE_BYTES, 3 * channel.PIECE_BYTES])


@contextlib.contextmanager
def sockets(transport: str) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Yield a ROUTER and a DEALER that is connected to it; nothing about them is encrypted."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        for one in (router, dealer):
            one.setsockopt(zmq.LINGER, 0)
        router.bind("tcp://127.0.0.1:*" if transport == "tcp" else "inproc://here")
        dealer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT) if transport == "tcp" else "inproc://here")
        yield router, dealer


async def travelled(transport: str, turns: list[list[list[bytes]]]) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Send every message, with a turn of the loop between the lists; return what came, and what came back of it."""
    there: list[list[bytes]] = []
    back: list[list[bytes]] = []
    number, all_back = sum(map(len, turns)), asyncio.Event()
    with sockets(transport) as (router, dealer):

        def received(frames: list[Frame]) -> None:
            there.append([bytes(frame) for frame in frames[1:]])
            assert server.send(frames)

        def returned(frames: list[Frame]) -> None:
            back.append([bytes(frame) for frame in frames])
            if len(back) == number:
                all_back.set()

        server = Channel(router, received, num_plain=9, bundles=True, addressed=True)
        client = Channel(dealer, returned, num_plain=9, bundles=True)
        for messages in turns:
            for message in messages:
                assert client.send(message)
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await all_back.wait()
        client.close()
        server.close()
    return there, back


@given(
    turns=st.lists(st.lists(st.lists(SIZES, min_size=1, max_size=3), max_size=6), min_size=1, max_size=4).filter(any),
    transport=st.sampled_from(["tcp", "inproc"]),
)
def test_messages_arrive_whole_and_in_order(turns: list[list[list[int]]], transport: str) -> None:
    """Whatever their sizes are, whoever bundled them, both ways."""
    number = iter(range(1_000_000))
    made = [[[b"%09d" % next(number) + bytes(size) for size in message] for message in turn] for turn in turns]
    sent = [message for turn in made for message in turn]

    assert asyncio.run(travelled(transport, made)) == (sent, sent)


class Counted:
    """A socket that counts the messages given to it."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket, self.messages = socket, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, piece: Any, flags: int, copy: bool) -> None:
        self.messages += not flags & zmq.SNDMORE
        self._socket.send(piece, flags, copy=copy)


async def calls(number: int, argument: Any) -> tuple[int, list[Any]]:
    """Return how many messages so many calls of one turn took, and their answers."""

    async def echo(_method: str, args: tuple[Any, ...]) -> Any:
        return args

    with sockets("tcp") as (router, dealer):
        server, client = RpcServer(router, echo), RpcClient("infer/0", "127.0.0.1", dealer)
        counted = Counted(dealer)
        client._channel._socket = counted  # type: ignore[attr-defined]  # its wire is a Channel
        answers = await asyncio.gather(*(client.call("x", argument, each, timeout_s=30) for each in range(number)))
        client.close()
        server.close()
    return counted.messages, answers


def test_calls_of_one_turn_are_one_message() -> None:
    """What a batch of requests costs on its way is what one costs."""
    assert asyncio.run(calls(40, "abc")) == (1, [("abc", each) for each in range(40)])
    assert asyncio.run(calls(1, "abc"))[0] == 1
    assert asyncio.run(calls(channel.MAX_BUNDLE + 1, "abc"))[0] == 2


def test_a_bundle_leaves_others_their_turn() -> None:
    """What a batch of answers begins is spread over turns of the loop, in order."""

    async def run() -> tuple[list[int], int]:
        turns: list[int] = []
        number, done = 3 * channel.MAX_MESSAGES_PER_TURN, asyncio.Event()
        turn = 0
        with sockets("inproc") as (router, dealer):

            def received(_frames: list[Frame]) -> None:
                turns.append(turn)
                if len(turns) == number:
                    done.set()

            server = Channel(router, received, num_plain=9, bundles=True, addressed=True)
            client = Channel(dealer, lambda _frames: None, num_plain=9, bundles=True)
            for _ in range(number):
                client.send([b"x"])
            while not done.is_set():
                await asyncio.sleep(0)
                turn += 1
            client.close()
            server.close()
        return turns, max(turns.count(each) for each in turns)

    turns, most = asyncio.run(run())

    assert turns == sorted(turns)
    assert most <= channel.MAX_MESSAGES_PER_TURN < len(turns)


def test_a_tensor_is_sent_as_it_is_when_it_is_sent() -> None:
    """Its memory may change in the same turn, so that it never waits for the end of it."""
    messages, answers = asyncio.run(calls(3, torch.arange(4)))

    assert messages == 3
    assert all(torch.equal(tensor, torch.arange(4)) for tensor, _ in answers)


def test_what_waits_is_sent_on_close() -> None:
    """An answer given in the last turn of a worker's life is sent like any other."""

    async def run() -> list[bytes]:
        with sockets("inproc") as (router, dealer):
            client = Channel(dealer, lambda _frames: None, num_plain=1, bundles=True)
            client.send([b"one"])
            client.send([b"two"])
            client.close()
            return router.recv_multipart(zmq.NOBLOCK)

    _, bundle = asyncio.run(run())

    assert bundle.startswith(BUNDLE) and b"one" in bundle and b"two" in bundle


@pytest.mark.parametrize("rest", [b"", b"\xc1", b"\x93", b"\x91\x01", b"\x91\x91\x01", b"\x80"])
def test_what_is_no_bundle_is_nobodys(rest: bytes) -> None:
    """And the next message arrives."""

    async def run() -> list[list[bytes]]:
        came: list[list[bytes]] = []
        arrived = asyncio.Event()
        with sockets("inproc") as (router, dealer):

            def received(frames: list[Frame]) -> None:
                came.append([bytes(frame) for frame in frames[1:]])
                arrived.set()

            server = Channel(router, received, num_plain=9, bundles=True, addressed=True)
            dealer.send(BUNDLE + rest)
            dealer.send(b"next")
            async with asyncio.timeout(30):
                await arrived.wait()
            server.close()
        return came

    assert asyncio.run(run()) == [[b"next"]]


def test_a_call_that_is_given_up_in_its_first_turn_leaves_nothing() -> None:
    """The worker hears of both at once: its task never ran, and is forgotten."""

    async def run() -> tuple[int, int]:
        started = 0

        async def handler(_method: str, args: tuple[Any, ...]) -> Any:
            nonlocal started
            started += bool(args)
            return args

        with sockets("inproc") as (router, dealer):
            server, client = RpcServer(router, handler), RpcClient("infer/0", "127.0.0.1", dealer)
            call = client.call("x", 1, timeout_s=30)
            call.send(None)
            call.close()
            await client.call("x", timeout_s=30)
            left = len(server._tasks)
            client.close()
            server.close()
        return started, left

    assert asyncio.run(run()) == (0, 0)
