"""How a server is told of an adapter.

Knows: the two routes most servers have, and answers to a question asked twice.
Does not know: which adapters there are, or when one is loaded (`adapting`, `policy_adapter`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from attrs import frozen

from areal_core.contract.errors import CapabilityError
from areal_serving.adapters import ServedAdapter
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
            await api.text(self.load_path, body, timeout_s=_LOAD_TIMEOUT_S)  # vLLM answers in prose
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
            await api.text(self.unload_path, {"lora_name": adapter.served})
        except ServerAnswer as error:
            if not self.is_gone(error):
                raise
