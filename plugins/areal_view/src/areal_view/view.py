"""`areal view RUN|DIR`: serve the page on this machine, and open it.

Knows: the socket, the token, the browser.
Does not know: what the page shows (`app`).
"""

from __future__ import annotations

import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import uvicorn
from cyclopts import Parameter

from areal_core.contract.errors import ResourceError, RunFolderError
from areal_view.app import make_app
from areal_view.runs import Runs

HOST = "127.0.0.1"


def view(
    folder: Path = Path("runs"),
    *,
    port: Annotated[int, Parameter(help="Where to listen on 127.0.0.1; 0 takes any free one.")] = 0,
    open_page: Annotated[bool, Parameter(name="--open", help="Open the page in the browser.")] = True,
) -> int:
    """Look at runs in the browser: curves, episodes with their tokens, timelines; also while they go on.

    Parameters
    ----------
    folder:
        A run folder, or a folder with runs in it.
    """
    if not Runs(folder).all():
        raise RunFolderError(
            f"there is no run in {folder}",
            why="neither it nor a folder in it holds metrics.jsonl or events.jsonl",
            fix="name a run folder or the folder it lies in; a run that begins appears once it wrote something",
        )
    token = secrets.token_urlsafe(32)
    with _listening(port) as listener:
        number = listener.getsockname()[1]
        app = make_app(folder, token=token, cookie=f"areal_view_{number}")
        config = uvicorn.Config(
            app,
            access_log=False,  # it would hold the token
            log_level="warning",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        address = f"http://{HOST}:{number}/?token={token}"
        with suppress(KeyboardInterrupt):  # how it is meant to end
            _Server(config, lambda: _tell(address, open_page=open_page)).run(sockets=[listener])
    return 0


class _Server(uvicorn.Server):
    """A server that says when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._started()


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ResourceError(
            f"port {port} of {HOST} cannot be had", why=str(error), fix="choose another --port, or 0 for any free one"
        ) from error
    return listener


def _tell(address: str, *, open_page: bool) -> None:
    sys.stdout.write(f"{address}\nOnly this machine, and only with this address. Ctrl-C ends it.\n")
    sys.stdout.flush()
    if open_page:
        webbrowser.open(address)
