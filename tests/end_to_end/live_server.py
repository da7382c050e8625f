"""One real server of an engine that stays while runs come and go.

Needs the environments of the engines. `make test-vllm`, `make test-sglang`
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from areal_core.contract.inference import InferenceSpec
from areal_torch.testing.serving import FolderWeights

KEY = "AREAL_TEST_SERVER_KEY"
both_engines = pytest.mark.parametrize(
    "engine",
    [pytest.param("vllm", marks=pytest.mark.vllm), pytest.param("sglang", marks=pytest.mark.sglang)],
    scope="module",
)


class Server:
    """One server that stays while runs come and go; each finds it as if it had just been started."""

    def __init__(self, name: str, model: Path) -> None:
        self.name, self._model, self._version = name, model, 0
        self._runner = asyncio.Runner()
        package = {"vllm": "VLLM", "sglang": "SGLang"}[name]
        config = getattr(import_module(f"areal_{name}.config"), f"{package}Config")
        engine = getattr(import_module(f"areal_{name}.engine"), f"{package}Engine")
        self._engine: Any = engine(config(kv_cache_gib=0.25))  # Any: of either package
        self._runner.run(self._engine.start(InferenceSpec(model_path=str(model), max_concurrent=32)))

    @property
    def url(self) -> str:
        """Return where it listens."""
        return str(self._engine.serving.url)

    @property
    def key(self) -> str:
        """Return what calls must carry."""
        return str(self._engine.serving.headers["Authorization"].removeprefix("Bearer "))

    def settings(self) -> tuple[str, ...]:
        """Put the starting model back, as version 0, and return what has a run use this server."""
        self._runner.run(self._as_started())
        return f"rollout.backend={self.name}:d1", f"rollout.options={{url: {self.url!r}, key_env: {KEY}}}"

    async def _as_started(self) -> None:
        self._version += 1
        await self._engine.receive_weights(FolderWeights.of(self._model).offer(self._version), self._version)
        await self._engine.commit_weights(self._version)
        await self._engine.serving.post("/update_weight_version", {"new_version": "0"})

    def close(self) -> None:
        """End it."""
        self._runner.run(self._engine.close())
        self._runner.close()
