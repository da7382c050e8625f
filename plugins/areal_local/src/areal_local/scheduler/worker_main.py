"""One worker process: `python -m areal_local.scheduler.worker_main`, told on standard input what to be.

Knows: the order of a worker's life: watchdog, listen, serve, close, end.
Does not know: how workers are placed (`local_scheduler`), or what its engine does (`areal_worker.service`).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys

import zmq

from areal_core.contract.errors import ResourceError
from areal_local.descriptors import make_room_for_strangers
from areal_local.scheduler.bootstrap import Bootstrap, Ready, bootstrap_from, read_line, to_line
from areal_local.scheduler.channel import KeyPair, doorkeeper, listening
from areal_local.scheduler.crowd import bound_crowd
from areal_local.scheduler.heartbeat import start_echo
from areal_local.scheduler.rpc import RpcServer
from areal_local.scheduler.stacks import write_stacks_when_asked
from areal_worker import schema, watchdog
from areal_worker.network import network_environment
from areal_worker.service import HOSTS, Place

logger = logging.getLogger("areal.worker")

_STDIN = 0


def main() -> None:
    """Live one worker's life. Ends by `os._exit`: gloo may abort the interpreter's own way out."""
    faulthandler.enable()
    write_stacks_when_asked()
    watchdog.die_with_parent()
    line = read_line(_STDIN)
    if not line:
        os._exit(0)
    bootstrap = bootstrap_from(line)
    for name, value in network_environment(bootstrap.host).items():
        os.environ.setdefault(name, value)  # what the job or the user set comes first
    watchdog_id = watchdog.post(_STDIN)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s {bootstrap.worker} %(levelname)s %(name)s: %(message)s",
    )
    code = 1
    try:
        _run(bootstrap)
        code = 0
    except Exception:  # the last output of the process; nobody is left to catch it
        logger.exception("worker failed")
    finally:
        watchdog.dismiss(watchdog_id)
        _flush()
        os._exit(code)


def _run(bootstrap: Bootstrap) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_live(bootstrap))
    else:
        uvloop.run(_live(bootstrap))


async def _live(bootstrap: Bootstrap) -> None:
    if schema.fingerprint() != bootstrap.schema:
        why = f"{sys.executable} has another version of areal-core than the controller"
        _answer(bootstrap, Ready(error=f"{why}; install the same one there"))
        raise RuntimeError(why)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    folder = bootstrap.listen if bootstrap.listen.startswith("/") else ""
    if not folder:
        make_room_for_strangers()
    keys = KeyPair(public=bootstrap.server_public, secret=bootstrap.server_secret)
    keeper = doorkeeper(context, bootstrap.client_public)
    try:
        of_ipv6 = ":" in bootstrap.host
        heartbeat, heartbeat_port = listening(context, keys, bootstrap.listen, of_ipv6=of_ipv6)
        socket, rpc_port = listening(context, keys, bootstrap.listen, of_ipv6=of_ipv6)
    except ResourceError as exc:
        _answer(bootstrap, Ready(error=str(exc)))
        raise
    if not folder:
        bound_crowd(heartbeat, heartbeat_port)
        bound_crowd(socket, rpc_port)
    start_echo(heartbeat)
    place = Place(worker=bootstrap.worker, backend=bootstrap.backend, imports=bootstrap.imports, folder=folder)
    host = HOSTS[bootstrap.engine_role](place)
    server = RpcServer(socket, host.call)
    _answer(bootstrap, Ready(rpc_port=rpc_port, heartbeat_port=heartbeat_port))
    logger.info("ready, process %d, %s", os.getpid(), sys.executable)
    await ended.wait()
    logger.info("asked to end")
    server.close()
    await host.close()
    keeper.stop()


def _answer(bootstrap: Bootstrap, ready: Ready) -> None:
    os.write(bootstrap.ready_descriptor, to_line(ready))
    os.close(bootstrap.ready_descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main()
