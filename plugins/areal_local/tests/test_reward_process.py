"""How one reward process is asked: an answer comes in any pieces, and nothing after it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence

import pytest

from areal_local.rewards import messages
from areal_local.rewards.process import MAX_ANSWER, ProcessEnded, RewardProcess

ANSWER = ["one", 2, 0.5]


def framed(body: bytes) -> bytes:
    return messages.LENGTH.pack(len(body)) + body


async def answered(pieces: Sequence[bytes]) -> object:
    """Return what is heard of a process that says these pieces, each when the one before was taken."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", "import sys; sys.stdin.read()"),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    asked = RewardProcess(process, ours)

    async def say() -> None:
        for piece in pieces:
            await loop.sock_sendall(theirs, piece)
            await asyncio.sleep(0)

    try:
        with theirs:
            saying = asyncio.create_task(say())
            try:
                return await asked.ask(messages.encode("?"), 60.0)
            finally:
                saying.cancel()
    finally:
        await asked.end()


def test_an_answer_is_whole_in_whatever_pieces_it_comes() -> None:
    """The length and the rest of it, at once or a byte at a time."""
    whole = framed(messages.encode(ANSWER))

    assert asyncio.run(answered([whole])) == ANSWER
    assert asyncio.run(answered([whole[place : place + 1] for place in range(len(whole))])) == ANSWER


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(framed(messages.encode(ANSWER)) + b"x", id="more than an answer"),
        pytest.param(messages.LENGTH.pack(MAX_ANSWER + 1), id="more than an answer may have"),
        pytest.param(framed(b"\xc1"), id="no answer"),
    ],
)
def test_a_process_that_says_something_else_is_ended(said: bytes) -> None:
    """What comes next could not be told from an answer."""
    with pytest.raises(ProcessEnded, match="killed by signal 9"):
        asyncio.run(answered([said]))
