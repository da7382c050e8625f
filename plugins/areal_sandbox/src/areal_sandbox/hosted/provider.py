"""What the providers of rented machines share: keys, sandboxes that are open, errors in our words.

Knows: that a key is there, and that nobody is told it.
Does not know: any service.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, field

from areal_agentic.sandbox import Limits, Sandbox, SandboxError
from areal_sandbox.hosted.machine import HostedSandbox, Machine


@define(eq=False)
class Machines:
    """The sandboxes of a provider."""

    _open: set[HostedSandbox] = field(factory=set, init=False)

    async def open(self, making: Coroutine[Any, Any, Machine], limits: Limits) -> Sandbox:
        """Return a sandbox on a machine that is being made. It is given back if this is cancelled, or fails.

        Any: what a coroutine never gives.
        """
        made = asyncio.ensure_future(self._made(making, limits))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            await asyncio.shield(_given_back(made))
            raise

    async def _made(self, making: Coroutine[Any, Any, Machine], limits: Limits) -> HostedSandbox:
        sandbox = HostedSandbox(machine=await making, limits=limits, ended=self._open.discard)
        self._open.add(sandbox)
        try:
            await sandbox.prepare()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def close(self) -> None:
        """Close every sandbox that is open. Idempotent."""
        await asyncio.gather(*(sandbox.close() for sandbox in set(self._open)))


async def _given_back(made: asyncio.Future[HostedSandbox]) -> None:
    try:
        await (await made).close()
    except SandboxError:
        return


def require_key(name: str, provider: str, page: str) -> str:
    """Return the key in a variable.

    Raises:
        SandboxError: there is none.
    """
    if not (key := os.environ.get(name, "").strip()):
        raise SandboxError(f"no sandbox of the provider {provider}", why=f"there is no key in {name}",
                           fix=f"export {name}=..., with a key of {page}")  # fmt: skip
    return key


def asked(question: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Ask a service something in a loop of its own: a check may be made where one runs. Any: as above."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, question()).result()


@asynccontextmanager
async def in_our_words(what: str, key: str, errors: tuple[type[Exception], ...]) -> AsyncIterator[None]:
    """Make errors of a service's own client a SandboxError that tells no key."""
    try:
        yield
    except errors as error:
        why = f"{type(error).__name__}: {error}".replace(key, "...")[:400] if key else str(error)[:400]
        raise SandboxError(what, why=why, fix="see the service's own status page, the key and its quota") from None
