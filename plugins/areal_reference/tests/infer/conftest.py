"""Tiny models and a running engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract.inference import InferenceSpec
from areal_reference.infer.config import ReferenceInferenceConfig
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.models import make_tiny_model


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one core: more would only make tiny models slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes, once, a tiny model folder of a kind."""
    made: dict[str, Path] = {}

    def make(kind: str = "qwen3", **options: Any) -> Path:
        key = f"{kind}{sorted(options.items())}"
        if key not in made:
            made[key] = make_tiny_model(tmp_path_factory.mktemp("model") / "m", kind=kind, **options)
        return made[key]

    return make


@pytest.fixture
def serve(model_folder: Callable[..., Path]) -> Callable[..., AbstractAsyncContextManager[ReferenceInferenceEngine]]:
    """Return a context manager that starts an engine on a folder and closes it; `config` holds its options."""

    @asynccontextmanager
    async def run(folder: Path | None = None, **options: Any) -> AsyncIterator[ReferenceInferenceEngine]:
        config = ReferenceInferenceConfig(**options.pop("config", {}))
        engine = ReferenceInferenceEngine(config)
        await engine.start(InferenceSpec(model_path=str(folder or model_folder()), **options))
        try:
            yield engine
        finally:
            await engine.close()

    return run
