"""Where clients of a run find it: a socket that listens before anything loads, a server on it, a file that tells.

Knows: addresses, the admin key and the file with both.
Does not know: what is answered (`app`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from areal_agents.server import Server
from areal_core.contract.errors import ConfigError, storage_errors

_BACKLOG = 1024


class Door:
    """One address. Taken at construction, so that one that is taken is told before a model loads.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server: Server | None = None
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = _listening(family, address)
        except OSError as error:
            raise ConfigError(
                f"clients cannot be let in at {host}:{port}",
                why=str(error),
                fix="choose another address with options.host and options.port; port 0 takes a free one",
            ) from None
        self.base_url = f"http://{_reached(str(address[0]))}:{self._socket.getsockname()[1]}/v1"

    async def open(self, app: ASGIApp) -> None:
        """Let clients in. Called once."""
        self._server = Server(app)
        await self._server.start(self._socket)

    async def close(self) -> None:
        """Let nobody in any more; who is being answered has a moment. Idempotent."""
        if self._server is not None:
            await self._server.close()
        self._socket.close()


def keep_key(path: Path) -> str:
    """Return the admin key in a run's key file, or a new one."""
    try:
        return str(json.loads(path.read_text())["admin_key"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"areal-admin-{secrets.token_urlsafe(24)}"


def tell_key(path: Path, base_url: str, key: str) -> None:
    """Write the file that tells where clients find a run, for its user alone.

    Raises:
        StorageError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    with storage_errors(path):
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"base_url": base_url, "admin_key": key}, file)
        new.replace(path)


def _listening(family: int, address: Any) -> socket.socket:  # Any: each family's own form
    """Return a socket that listens: bound alone, two runs could share an address until one of them does."""
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _reached(host: str) -> str:
    """Return where this machine's clients reach a host; that of all addresses is none itself."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        return "[::1]" if address.version == 6 else "127.0.0.1"
    return f"[{host}]" if address.version == 6 else host
