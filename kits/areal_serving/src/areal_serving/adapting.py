"""The adapters of one engine, in its server and in the one that takes its place.

Knows: when a version is loaded, used and dropped.
Does not know: how a server is told; the backend says it. Which version is whose: `adapters`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from attrs import evolve, frozen

from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import Generation, GenerationRequest, VersionSpan
from areal_serving.adapter_folder import check_adapter
from areal_serving.adapters import Adapters, ServedAdapter
from areal_serving.engine import Running
from areal_serving.http import Api, ServerAnswer

Tell = Callable[[Api, ServedAdapter], Awaitable[None]]
_LOAD_TIMEOUT_S = 300.0


@frozen(kw_only=True)
class AdapterRoutes:
    """A server's routes for adapters, `lora_name` and `lora_path` in their bodies.

    `is_there` and `is_gone` recognise the answers to a question asked twice, because its first answer was lost.
    """

    engine: str
    load_path: str
    unload_path: str
    is_there: Callable[[ServerAnswer], bool]
    is_gone: Callable[[ServerAnswer], bool]

    async def load(self, api: Api, adapter: ServedAdapter, folder: Path | None = None) -> None:
        """Have the server load an adapter, from `folder` if that is not the adapter's own.

        Raises:
            CapabilityError: it cannot use it.
        """
        body = {"lora_name": adapter.served, "lora_path": str(folder or adapter.path)}
        try:
            await api.post(self.load_path, body, timeout_s=_LOAD_TIMEOUT_S)
        except ServerAnswer as error:
            if self.is_there(error):
                return
            raise CapabilityError(
                f"{self.engine} cannot use adapter {adapter.name!r} from {adapter.path}",
                why=error.text,
                fix="check its rank against rollout.options.max_adapter_rank, and its target modules",
            ) from error

    async def unload(self, api: Api, adapter: ServedAdapter) -> None:
        """Have the server drop an adapter, also one it does not have."""
        try:
            await api.post(self.unload_path, {"lora_name": adapter.served})
        except ServerAnswer as error:
            if not self.is_gone(error):
                raise


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
