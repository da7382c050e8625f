"""A worker of the second scheduler: `python -m areal_proof.second.scheduler_worker DESCRIPTOR`.

Knows: the order of its life, and that it ends with the stream.
Does not know: engines; the core's hosts drive them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from functools import partial
from typing import Any

from areal_core.contract.errors import ArealError, RemoteError
from areal_proof.second import scheduler_wire as wire
from areal_worker.network import network_environment
from areal_worker.service import HOSTS, Host, Place

_BEAT_S = 0.05


def main() -> None:
    """Serve until told to end, or until nobody is at the other end."""
    try:
        asyncio.run(_live(int(sys.argv[1])))
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)


async def _live(descriptor: int) -> None:
    told_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    (_, job, name, address) = await wire.receive(reader)
    for variable, value in network_environment(address).items():
        os.environ.setdefault(variable, value)
    host = HOSTS[job["engine_role"]](Place(worker=name, backend=job["backend"], imports=tuple(job["imports"])))
    beating = asyncio.create_task(_beat(writer))
    serving = asyncio.create_task(_serve(reader, writer, host))
    watch_for_end(descriptor)
    wire.send(writer, (wire.READY,))
    await asyncio.wait({serving, asyncio.create_task(told_to_end.wait())}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        os.killpg(0, signal.SIGKILL)
    beating.cancel()
    serving.cancel()
    await host.close()


def watch_for_end(descriptor: int) -> None:
    """End the whole group, also while the loop is busy, once the other end of the stream is closed."""

    def watch() -> None:
        import select

        poller = select.poll()
        poller.register(descriptor, select.POLLRDHUP)
        poller.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


async def _beat(writer: asyncio.StreamWriter) -> None:
    while True:
        wire.send(writer, (wire.BEAT,))
        await asyncio.sleep(_BEAT_S)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: Host) -> None:
    running: dict[int, asyncio.Task[None]] = {}
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            match await wire.receive(reader):
                case (wire.CALL, number, method, args):
                    running[number] = asyncio.create_task(answer(writer, host, number, method, args))
                    running[number].add_done_callback(partial(_forget, running, number))
                case (wire.CANCEL, number) if number in running:
                    running[number].cancel()


async def answer(writer: asyncio.StreamWriter, host: Host, number: int, method: str, args: tuple[Any, ...]) -> None:
    try:
        wire.send(writer, (wire.OK, number, await host.call(method, args)))
    except asyncio.CancelledError as error:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # a coroutine always runs in a task
            raise
        wire.send(writer, (wire.FAILED, number, _remote(method, error)))
    except ArealError as error:
        wire.send(writer, (wire.FAILED, number, error))
    except Exception as error:
        traceback.print_exc()
        wire.send(writer, (wire.FAILED, number, _remote(method, error)))


def _forget(running: dict[int, asyncio.Task[None]], number: int, _task: asyncio.Task[None]) -> None:
    running.pop(number, None)


def _remote(method: str, error: BaseException) -> ArealError:
    lines = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace").decode()
    what = f"{method!r} raised {type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
    return RemoteError(what, why=lines)


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
