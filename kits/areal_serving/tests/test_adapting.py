"""Adapters in a server that a script plays: loaded, used, dropped, loaded again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from attrs import define, evolve, field
from safetensors.torch import save_file

from areal_core.contract.data import StopReason
from areal_core.contract.errors import ModelError
from areal_core.contract.inference import Generation, GenerationRequest, Timings, VersionSpan
from areal_serving.adapters import ServedAdapter
from areal_serving.adapting import Adapting
from areal_serving.engine import Running
from areal_serving.http import Api
from areal_torch.testing.serving import ask

LAYER = "model.layers.0.self_attn.q_proj"


@define
class ScriptedServer:
    """What `Running` gives an adapter: a model, and a server that is asked; remembers what it was told."""

    told: list[str] = field(factory=list)
    shapes: dict[str, tuple[int, ...]] = field(factory=lambda: {f"{LAYER}.weight": (8, 6)})

    @property
    def model(self) -> ScriptedServer:
        """Return itself."""
        return self

    @property
    def server(self) -> ScriptedServer:
        """Return itself."""
        return self

    async def asked(self, question: Callable[[Api], Awaitable[None]]) -> None:
        """Answer."""
        await question(cast(Api, self))

    async def load(self, _api: Api, adapter: ServedAdapter) -> None:
        """Load one."""
        self.told.append(f"+{adapter.served}")

    async def unload(self, _api: Api, adapter: ServedAdapter) -> None:
        """Drop one."""
        self.told.append(f"-{adapter.served}")


def folder(path: Path, *, width: int = 6, **entries: Any) -> Path:
    """Write an adapter of rank 2 for a layer of that many inputs; `entries` are of its configuration. Any: JSON."""
    path.mkdir()
    name = f"base_model.model.{LAYER}.lora_{{}}.weight"
    save_file({name.format("A"): torch.zeros(2, width), name.format("B"): torch.zeros(8, 2)}, path / "a.safetensors")
    says = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], **entries}
    (path / "adapter_config.json").write_text(json.dumps(says))
    return path


def made(server: ScriptedServer) -> tuple[Adapting, Running]:
    """Return adapters of a server, and the server as an engine has it."""
    return Adapting(2, load=server.load, unload=server.unload), cast(Running, server)


def test_a_request_keeps_the_version_it_began_with(tmp_path: Path) -> None:
    """It is stamped with it, and the version is dropped once no request uses it."""
    server = ScriptedServer()
    adapting, running = made(server)
    path, request = folder(tmp_path / "a"), evolve(ask(5), adapter="a")
    end = asyncio.Event()

    async def generate(asked: GenerationRequest) -> Generation:
        await end.wait()
        server.told.append(f"made by {asked.adapter}")
        span = VersionSpan(start=0, stop=2, version=77)
        whole: dict[str, Any] = {"output_ids": (1, 2), "logprobs": (0.0, 0.0), "version_spans": (span,)}
        return Generation(**whole, stop_reason=StopReason.LENGTH, timings=Timings())

    async def replaced() -> Generation:
        await adapting.load(running, "a", path, 1)
        call = asyncio.ensure_future(adapting.generated(request, generate))
        await asyncio.sleep(0)
        await adapting.load(running, "a", path, 2)
        end.set()
        result = await call
        await adapting.unload(running, "a")
        return result

    result = asyncio.run(replaced())

    assert server.told == ["+a@1", "+a@2", "made by a@1", "-a@1", "-a@2"]
    assert result.version_spans == (VersionSpan(start=0, stop=2, version=1),)


def test_a_server_that_was_started_again_has_them_all(tmp_path: Path) -> None:
    """Those that later requests get, and no other."""
    server = ScriptedServer()
    adapting, running = made(server)

    async def revived() -> None:
        for name, version in (("a", 1), ("b", 4), ("a", 2)):
            await adapting.load(running, name, folder(tmp_path / f"{name}{version}"), version)
        server.told.clear()
        await adapting.revive(cast(Api, server))

    asyncio.run(revived())

    assert sorted(server.told) == ["+a@2", "+b@4"]


def test_what_does_not_fit_reaches_no_server(tmp_path: Path) -> None:
    """The place it would have had is free."""
    server = ScriptedServer()
    adapting, running = made(server)

    async def loaded() -> None:
        with pytest.raises(ModelError, match="does not fit"):
            await adapting.load(running, "a", folder(tmp_path / "wide", width=12), 1)
        await adapting.load(running, "a", folder(tmp_path / "a"), 1)

    asyncio.run(loaded())

    assert server.told == ["+a@1"]


@pytest.mark.parametrize(
    "entry", [{"use_dora": True}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1.0}}], ids=str
)
def test_what_servers_would_compute_otherwise_reaches_none(entry: dict[str, Any], tmp_path: Path) -> None:
    """Not every server knows other kinds and other scales, and none says so."""
    server = ScriptedServer()
    adapting, running = made(server)

    with pytest.raises(ModelError, match="another kind"):
        asyncio.run(adapting.load(running, "a", folder(tmp_path / "a", **entry), 1))

    assert not server.told
