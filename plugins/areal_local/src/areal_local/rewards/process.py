"""One reward process, as the controller sees it: begun, asked, ended with all it started.

Knows: the channel to one process, and how its end is told from a slow answer.
Does not know: which completions are asked for, or what becomes of a process that ended (`pool`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import Any

from areal_core.contract.errors import CodecError
from areal_local.rewards import messages

MAX_ANSWER = 64 << 20
"""Bytes of one answer at most: a reward that returns more is broken."""


class ProcessEnded(Exception):
    """The process is gone. `code` is its exit code, -n if signal n ended it."""

    def __init__(self, code: int) -> None:
        self.code = code
        how = f"was killed by signal {-code} ({_signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"its process {how}")


class RewardProcess:
    """A process that leads a session of its own, so that a signal to the controller's group does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        """Made by `begin`."""
        self._process = process
        self._channel = channel

    @classmethod
    async def begin(cls) -> RewardProcess:
        """Start a process; it asks for nothing until the first message."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "areal_local.rewards.process_main", str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,  # closes with this process: the watchdog there ends the group then
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """Return its process id, which is its group's too."""
        return self._process.pid

    async def ask(self, message: bytes, timeout_s: float) -> Any:
        """Send an encoded message and return the answer. Any: the process decides.

        Raises:
            TimeoutError: no answer in time; the process is as it was, and still at work.
            ProcessEnded: it ended before it answered, or was ended because its answer was none.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            try:
                await loop.sock_sendall(self._channel, messages.LENGTH.pack(len(message)) + message)
                return messages.decode(await self._answer())
            except (OSError, CodecError) as error:
                self._signal()
                raise ProcessEnded(await self._process.wait()) from error

    async def end(self) -> None:
        """Kill it with everything in its group, and wait until it is gone. Idempotent."""
        self._signal()
        await self._process.wait()
        self._channel.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _answer(self) -> bytes:
        """Return the bytes of one answer; nothing comes after it until it is asked again."""
        data, size, begin = bytearray(), 0, messages.LENGTH.size
        while len(data) < begin + size:
            part = await asyncio.get_running_loop().sock_recv(self._channel, 1 << 20 if size else 1 << 16)
            if not part:
                raise ConnectionError("the channel is closed")
            data += part
            if not size and len(data) >= begin:
                (size,) = messages.LENGTH.unpack_from(data)
                if size > MAX_ANSWER:
                    raise CodecError(f"an answer of {size} bytes")
        if len(data) > begin + size:
            raise CodecError(f"{len(data) - begin - size} bytes after an answer")
        return bytes(data[begin:])

    def _signal(self) -> None:
        """Kill the group, whoever of it is left: also what a reward function started and left behind."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
