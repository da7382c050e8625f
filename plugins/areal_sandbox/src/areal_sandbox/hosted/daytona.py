"""The provider `daytona`: sandboxes of Daytona, by its own client.

Knows: what Daytona's client is called with.
Does not know: how a command is run on a machine (`machine`).
"""

from __future__ import annotations

import math
import os
from typing import Any

import aiohttp
from attrs import define, field
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaError,
    DaytonaNotFoundError,
    ListSandboxesQuery,
    Resources,
)
from daytona import DaytonaConfig as ClientConfig

from areal_agentic.sandbox import Limits, Sandbox
from areal_sandbox.hosted.config import DaytonaConfig
from areal_sandbox.hosted.provider import Machines, asked, in_our_words, require_key

_ERRORS = (DaytonaError, aiohttp.ClientError, OSError, ValueError)
_SERVICE = "https://app.daytona.io/api"
_KEY, _PAGE = "DAYTONA_API_KEY", "https://app.daytona.io/dashboard/keys"


@define(eq=False)
class DaytonaProvider:
    """A `SandboxProvider`."""

    config: DaytonaConfig = field(factory=DaytonaConfig)
    _machines: Machines = field(factory=Machines, init=False)

    def check(self) -> None:
        """Tell whether there is a key and Daytona takes it."""
        key = require_key(_KEY, "daytona", _PAGE)

        async def listed() -> None:
            async with in_our_words("no sandbox of the provider daytona", key, _ERRORS), _client(key) as client:
                async for _ in client.list(ListSandboxesQuery(limit=1)):
                    break

        asked(listed)

    async def open(self, limits: Limits, *, image: str = "") -> Sandbox:
        """Return a new, empty sandbox; Daytona builds one of `image`."""
        return await self._machines.open(self._made(limits, image), limits)

    async def close(self) -> None:
        """Close every sandbox that is open. Idempotent."""
        await self._machines.close()

    async def _made(self, limits: Limits, image: str) -> _DaytonaMachine:
        key = require_key(_KEY, "daytona", _PAGE)
        what = f"Daytona made no machine of {image or self.config.snapshot or 'its default snapshot'}"
        client = _client(key)
        try:
            async with in_our_words(what, key, _ERRORS):
                made = await client.create(self._asked(limits, image), timeout=self.config.start_timeout_s)
        except BaseException:
            await client.close()  # type: ignore[no-untyped-call]
            raise
        return _DaytonaMachine(client, made, key)

    def _asked(self, limits: Limits, image: str) -> CreateSandboxFromImageParams | CreateSandboxFromSnapshotParams:
        same: dict[str, Any] = {  # Any: of several types
            "os_user": "root",
            "network_block_all": not limits.network,
            "auto_stop_interval": math.ceil(self.config.idle_s / 60),
            "ephemeral": True,
        }
        if not image:
            return CreateSandboxFromSnapshotParams(snapshot=self.config.snapshot or None, **same)
        resources = Resources(memory=math.ceil(limits.memory_mb / 1024), disk=math.ceil(limits.disk_mb / 1024))
        return CreateSandboxFromImageParams(image=image, resources=resources, **same)


def _client(key: str) -> AsyncDaytona:
    return AsyncDaytona(ClientConfig(api_key=key, api_url=os.environ.get("DAYTONA_API_URL") or _SERVICE))


@define(eq=False)
class _DaytonaMachine:
    client: AsyncDaytona
    made: AsyncSandbox
    key: str = field(repr=False)
    given_back: bool = False

    async def shell(self, script: str, timeout_s: float) -> str:
        async with in_our_words("a machine of Daytona did not answer", self.key, _ERRORS):
            ran = await self.made.process.exec(script, cwd="/", timeout=math.ceil(timeout_s))
        return str(ran.result)

    async def upload(self, path: str, data: bytes) -> None:
        async with in_our_words("a machine of Daytona took no file", self.key, _ERRORS):
            await self.made.fs.upload_file(data, path)

    async def destroy(self) -> None:
        if self.given_back:
            return
        self.given_back = True
        try:
            async with in_our_words("a machine of Daytona could not be given back", self.key, _ERRORS):
                try:
                    await self.client.delete(self.made)
                except DaytonaNotFoundError:  # it ended by itself
                    return
        finally:
            await self.client.close()  # type: ignore[no-untyped-call]
