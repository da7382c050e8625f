"""The server ends with the event loop it was started in, also where nobody closed it."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import aiohttp
import httpx
import openai
from starlette.applications import Starlette

from areal_agents.server import KEEP_ALIVE_S, Server


def test_a_server_that_nobody_closed_leaves_nothing_open() -> None:
    """Neither its listener nor a connection that a client keeps open."""
    with warnings.catch_warnings(record=True) as seen, socket.socket() as client:
        warnings.simplefilter("always")

        async def served() -> None:
            server = Server(Starlette())
            await server.start()
            loop = asyncio.get_running_loop()
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", server.port))
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            assert (await loop.sock_recv(client, 64)).startswith(b"HTTP/1.1 404")

        asyncio.run(served())
        gc.collect()

    assert [str(each.message) for each in seen if each.category is ResourceWarning] == []


def test_no_client_keeps_an_idle_connection_longer_than_the_server() -> None:
    """Else its request may arrive at one that is being closed, which is told as a reset, and not asked again."""

    async def aiohttps() -> float:
        async with aiohttp.TCPConnector() as connector:
            return float(connector._keepalive_timeout)

    kept = [httpx.Limits().keepalive_expiry, openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry, asyncio.run(aiohttps())]

    assert all(seconds and seconds < KEEP_ALIVE_S for seconds in kept), kept
    assert Server(Starlette())._server.config.timeout_keep_alive == KEEP_ALIVE_S
