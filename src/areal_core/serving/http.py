"""Calls to one generation server: JSON in and out, with its key, over kept connections.

Knows: which failures mean that no answer came, and when a connection must not be used again.
Does not know: any route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

IDLE_S = 4.0
"""Connections idle for longer are closed: servers close theirs after 5 seconds, maybe while a call is on its way."""
CALL_TIMEOUT_S = 60.0
_SHOWN = 500


class ServerGone(Exception):
    """No answer: refused, reset, ended midway, or silent beyond the call's time."""


class ServerAnswer(Exception):
    """An answer that is no success. `text` is its body, cut."""

    def __init__(self, path: str, status: int, text: str) -> None:
        super().__init__(f"{path} answered {status}: {text[:_SHOWN]}")
        self.path = path
        self.status = status
        self.text = text[:_SHOWN]


class Api:
    """One server at `url`, for example "http://127.0.0.1:8123". `key` "" sends none.

    Made and used in one event loop; as many calls at once as are made.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._session: aiohttp.ClientSession | None = None

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Return the decoded JSON of a GET, None for an empty body. Any: the server's own.

        Raises:
            ServerAnswer, ServerGone: no success, no answer.
        """
        return _decoded(path, await self._call("GET", path, None, params, timeout_s))

    async def text(self, path: str, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Return the body of a GET as text."""
        return (await self._call("GET", path, None, None, timeout_s)).decode("utf-8", "replace")

    async def post(
        self,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = CALL_TIMEOUT_S,
    ) -> Any:
        """Return the decoded JSON of a POST. Never sent twice. `timeout_s` None waits for as long as it takes."""
        encoded = msgspec.json.encode({} if body is None else body)
        return _decoded(path, await self._call("POST", path, encoded, params, timeout_s))

    async def close(self) -> None:
        """Drop every connection; calls under way raise ServerGone. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str] | None, timeout_s: float | None
    ) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=body,
                params=params,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                answer = await response.read()
                if response.status >= 500:
                    response.close()  # servers drop the connection after one; a call sent down it would be lost
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise ServerGone(f"{path}: {type(error).__name__}: {error}") from error
        except RuntimeError as error:  # aiohttp's word for a session closed meanwhile
            raise ServerGone(f"{path}: {error}") from error
        if not 200 <= response.status < 300:
            raise ServerAnswer(path, response.status, answer.decode("utf-8", "replace"))
        return answer


def _decoded(path: str, answer: bytes) -> Any:
    if not answer:
        return None
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise ServerGone(f"{path}: the answer is not JSON: {error}") from error
