"""Calls to one generation server: JSON in and out, with its key, one connection per call.

Connections are not kept: servers close theirs after an error or a few idle seconds, maybe while a call is on
its way, and beside a generation a connection over loopback costs nothing.

Knows: which failures mean that no answer came.
Does not know: any route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

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
        self._closed = False

    @property
    def headers(self) -> Mapping[str, str]:
        """Return what every call carries, the key among it: for a client that must call the server itself."""
        return self._headers

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Return the decoded JSON of a GET, None for an empty body. Any: the server's own.

        Raises:
            ServerAnswer, ServerGone: no success, no answer.
        """
        return _decoded(path, await self._call("GET", path, None, params, timeout_s))

    async def text(self, path: str, body: Any = None, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Return the answer to a GET, or to a POST of `body`, as text.

        Raises:
            ServerAnswer, ServerGone: no success, no answer.
        """
        method, encoded = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        return (await self._call(method, path, encoded, None, timeout_s)).decode("utf-8", "replace")

    async def post(
        self,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = CALL_TIMEOUT_S,
    ) -> Any:
        """Return the decoded JSON of a POST, sent once. `timeout_s` None waits for as long as it takes.

        Raises:
            ServerAnswer, ServerGone: no success, no answer.
        """
        encoded = msgspec.json.encode({} if body is None else body)
        return _decoded(path, await self._call("POST", path, encoded, params, timeout_s))

    async def close(self) -> None:
        """Drop every connection; calls under way raise ServerGone. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str] | None, timeout_s: float | None
    ) -> bytes:
        if self._closed:
            raise ServerGone(f"{path}: the connection to {self.url} was closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
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
