"""Where clients of a run find it: a socket that is taken before anything loads, a server on it, a file that tells.

Knows: addresses, the admin key and the file with both.
Does not know: what is answered (`app`).
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path

from starlette.types import ASGIApp

from areal_agents.server import Server
from areal_core.contract.errors import ConfigError

KEY_FILE = "online.json"
"""In the run folder, for its user alone: `base_url` and `admin_key`."""


class Door:
    """One address. Taken at construction, so that one that is taken is told before a model loads.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server: Server | None = None
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except OSError as error:
            raise ConfigError(
                f"clients cannot be let in at {host}:{port}",
                why=str(error),
                fix="choose another with options.port; 0 takes a free one",
            ) from None
        named = f"[{host}]" if ":" in host else host
        self.base_url = f"http://{named}:{self._socket.getsockname()[1]}/v1"

    async def open(self, app: ASGIApp) -> None:
        """Let clients in. Called once."""
        self._server = Server(app)
        await self._server.start(self._socket)

    async def close(self) -> None:
        """Let nobody in any more; who is being answered has a moment. Idempotent."""
        if self._server is not None:
            await self._server.close()
        self._socket.close()


def keep_key(path: Path, base_url: str) -> str:
    """Write the file that tells where clients find a run, and return its admin key: that of before, if there is one."""
    key = _kept_key(path) or f"areal-admin-{secrets.token_urlsafe(24)}"
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"base_url": base_url, "admin_key": key}, file)
    new.replace(path)
    return key


def _kept_key(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["admin_key"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
