"""The adapters of one engine, in its server and in the one that takes its place.

Knows: when a version is loaded, used and dropped.
Does not know: how a server is told; the backend says it. Which version is whose: `adapters`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from attrs import evolve

from areal_core.contract.inference import Generation, GenerationRequest, VersionSpan
from areal_serving.adapter_folder import check_adapter
from areal_serving.adapter_routes import Tell
from areal_serving.adapters import Adapters, ServedAdapter
from areal_serving.engine import Running
from areal_serving.http import Api
from areal_torch.adapter_config import read_lora


class Adapting:
    """Serves up to `limit` adapters side by side; their old versions for as long as a request uses them.

    Args:
        load: has a server load one; also one it has already, if an answer was lost.
        unload: has a server drop one; also one it does not have.
    """

    def __init__(self, limit: int, *, load: Tell, unload: Tell) -> None:
        self._adapters = Adapters(limit)
        self._load = load
        self._unload = unload
        self._alone = asyncio.Lock()

    async def generated(
        self, request: GenerationRequest, generate: Callable[[GenerationRequest], Awaitable[Generation]]
    ) -> Generation:
        """Generate; with an adapter, stamped with the adapter's version.

        Raises:
            CapabilityError: nothing of that name is loaded.
        """
        if not request.adapter:
            return await generate(request)
        adapter = self._adapters.find(request.adapter)
        self._adapters.begin(adapter)
        try:
            made = await generate(evolve(request, adapter=adapter.served))
        finally:
            self._adapters.end(adapter)
        count = len(made.output_ids)
        spans = (VersionSpan(start=0, stop=count, version=adapter.version),) if count else ()
        return evolve(made, version_spans=spans)

    async def load(self, running: Running, name: str, path: Path, version: int) -> None:
        """Load one version; later requests that name it use it, those in flight keep theirs.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
            CapabilityError: no place for it, or the server cannot use it.
        """
        async with self._alone:
            adapter = self._adapters.admit(name, path, version)
            await asyncio.to_thread(check_adapter, path, running.model.shapes)
            await asyncio.to_thread(read_lora, "load_adapter", str(path), by_engine=True)
            await running.server.asked(lambda api: self._load(api, adapter))
            self._adapters.loaded(adapter)
            await self._drop_unused(running)

    async def unload(self, running: Running, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
        async with self._alone:
            self._adapters.forget(name)
            await self._drop_unused(running)

    async def revive(self, api: Api) -> None:
        """Load them into a server that was started again."""
        for adapter in self._adapters:
            await self._load(api, adapter)

    async def _drop_unused(self, running: Running) -> None:
        for adapter in self._adapters.unused():
            await self._drop(running, adapter)

    async def _drop(self, running: Running, adapter: ServedAdapter) -> None:
        await running.server.asked(lambda api: self._unload(api, adapter))
