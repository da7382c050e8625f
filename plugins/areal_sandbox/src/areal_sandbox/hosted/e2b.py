"""The provider `e2b`: micro virtual machines of E2B, by its own client.

Knows: what E2B's client is called with.
Does not know: how a command is run on a machine (`machine`).
"""

from __future__ import annotations

import httpx
from attrs import define, field
from e2b import AsyncSandbox, AuthenticationException, SandboxException, ServiceBusyException

from areal_agentic.sandbox import Limits, Sandbox
from areal_sandbox.hosted.config import E2BConfig
from areal_sandbox.hosted.provider import Machines, asked, in_our_words, require_key

_ERRORS = (SandboxException, AuthenticationException, ServiceBusyException, httpx.HTTPError, OSError, ValueError)
_KEY, _PAGE = "E2B_API_KEY", "https://e2b.dev/dashboard"


@define(eq=False)
class E2BProvider:
    """A `SandboxProvider`."""

    config: E2BConfig = field(factory=E2BConfig)
    _machines: Machines = field(factory=Machines, init=False)

    def check(self) -> None:
        """Tell whether there is a key and E2B takes it."""
        key = require_key(_KEY, "e2b", _PAGE)

        async def listed() -> None:
            async with in_our_words("no sandbox of the provider e2b", key, _ERRORS):
                await AsyncSandbox.list(limit=1, api_key=key).next_items()

        asked(listed)

    async def open(self, limits: Limits, *, image: str = "") -> Sandbox:
        """Return a new, empty sandbox; `image` is a template's name."""
        return await self._machines.open(self._made(limits, image or self.config.template), limits)

    async def close(self) -> None:
        """Close every sandbox that is open. Idempotent."""
        await self._machines.close()

    async def _made(self, limits: Limits, template: str) -> _E2BMachine:
        key = require_key(_KEY, "e2b", _PAGE)
        async with in_our_words(f"E2B made no machine of {template}", key, _ERRORS):
            made = await AsyncSandbox.create(
                template,
                timeout=self.config.lifetime_s,
                allow_internet_access=limits.network,
                api_key=key,
                request_timeout=self.config.start_timeout_s,
            )
        return _E2BMachine(made, key)


@define(eq=False)
class _E2BMachine:
    made: AsyncSandbox
    key: str = field(repr=False)

    async def shell(self, script: str, timeout_s: float) -> str:
        async with in_our_words("a machine of E2B did not answer", self.key, _ERRORS):
            ran = await self.made.commands.run(script, user="root", cwd="/", timeout=timeout_s)
        return str(ran.stdout)

    async def upload(self, path: str, data: bytes) -> None:
        async with in_our_words("a machine of E2B took no file", self.key, _ERRORS):
            await self.made.files.write(path, data, user="root")

    async def destroy(self) -> None:
        async with in_our_words("a machine of E2B could not be given back", self.key, _ERRORS):
            await self.made.kill()
