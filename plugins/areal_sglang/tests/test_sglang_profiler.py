"""Steps traced by SGLang's own profiler: what it is asked, and one real server on the CPU.

make test-sglang
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from attrs import define, field

from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_serving.http import Api
from areal_sglang.config import SGLangConfig
from areal_sglang.engine import SGLangEngine
from areal_sglang.profiler import SGLangProfiler
from areal_torch.profile import profile_variables
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask


@define
class Routes:
    """Answers as SGLang's routes and `profiler_manager` do; a record of many `passes` may end by itself.

    It may generate meanwhile: `later` passes more are computed between the question and the order to stop.
    """

    passes: int
    later: int = 0
    settings: dict[str, Any] = field(factory=dict)  # Any: JSON
    asked: list[str] = field(factory=list)
    recording: bool = False

    async def start(self, request: web.Request) -> web.Response:
        """Begin, and compute."""
        self.asked.append("start")
        self.settings, self.recording = await request.json(), True
        self.compute(self.passes)
        return web.Response(text="Start profiling.\n")

    async def question(self, request: web.Request) -> web.Response:
        """Answer for every rank."""
        self.asked.append((await request.json())["action"])
        return web.json_response({"success": True, "message": "[{}]"})

    async def stop(self, _: web.Request) -> web.Response:
        """End, unless it has ended."""
        self.asked.append("stop")
        self.compute(self.passes + self.later)
        if not self.recording:
            return web.Response(status=500, text="Internal Server Error")
        self.write()
        return web.Response(text="Stop profiling. This will take some time.\n")

    def compute(self, passes: int) -> None:
        """Compute until there were so many passes."""
        if self.recording and passes > self.settings["num_steps"]:
            self.write()

    def write(self) -> None:
        """Write a trace."""
        self.recording = False
        (Path(self.settings["output_dir"]) / "1763856000.12-TP-0.trace.json.gz").touch()

    async def recorded(self, folder: Path) -> None:
        """Have a profiler begin and end a record."""
        app, profiler = web.Application(), SGLangProfiler()
        app.router.add_post("/start_profile", self.start)
        app.router.add_post("/weights_checker", self.question)
        app.router.add_route("*", "/stop_profile", self.stop)
        async with TestServer(app) as server:
            api = Api(str(server.make_url("")), "key")
            try:
                await profiler.start(api, folder)
                await profiler.stop(api, folder)
            finally:
                await api.close()


def test_a_record_begins_and_ends_by_sglangs_routes(tmp_path: Path) -> None:
    """Which answer in prose; its ranks write before they answer a question."""
    routes = Routes(passes=5)
    asyncio.run(routes.recorded(tmp_path))

    assert routes.asked == ["start", "areal.describe", "stop"]
    assert routes.settings == {
        "output_dir": str(tmp_path),
        "with_stack": False,
        "record_shapes": True,
        "num_steps": 50,
    }


def test_a_record_that_ended_by_itself_is_not_ended_again(tmp_path: Path) -> None:
    """SGLang takes that for an error."""
    routes = Routes(passes=51)
    asyncio.run(routes.recorded(tmp_path))

    assert routes.asked == ["start", "areal.describe"]


def test_a_record_that_ends_by_itself_while_it_is_ended_is_kept(tmp_path: Path) -> None:
    """A weight update does not wait until a server stands still."""
    routes = Routes(passes=50, later=1)
    asyncio.run(routes.recorded(tmp_path))

    assert routes.asked == ["start", "areal.describe", "stop"]
    assert list(tmp_path.glob("*.json.gz"))


def test_the_rank_is_found_in_the_name_of_a_file() -> None:
    """As SGLang's `profiler_manager` makes it."""
    match = SGLangProfiler.rank.search("1763856000.12-TP-3.trace.json.gz")

    assert match is not None and match[1] == "3"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_server_traces_the_steps_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two of three, each as one file among the run's; a long one is traced in part."""
    for name, value in profile_variables({"steps": [1, 2]}, 3, tmp_path, "rollout").items():
        monkeypatch.setenv(name, value)
    model = make_tiny_model(tmp_path / "model", kind="qwen3", tied=False, max_position=512)

    async def run() -> list[int]:
        engine = SGLangEngine(SGLangConfig(max_restarts=0, kv_cache_gib=0.05))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4))
        try:
            versions = []
            for version in range(3):
                if version:
                    await engine.receive_weights(FolderWeights.of(model).offer(version), version)
                    await engine.pause(PauseMode.KEEP)
                    await engine.commit_weights(version)
                    await engine.resume()
                tokens = 90 if version == 0 else 8
                made = await engine.generate(ask(5, 9, 7, max_new_tokens=tokens, ignore_eos=True))
                versions.append(made.version_spans[0].version)
            return versions
        finally:
            await engine.close()

    assert asyncio.run(run()) == [0, 1, 2]

    made = sorted(path for path in (tmp_path / "profile").rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path / "profile")) for path in made] == [
        "step-1/rollout-rank0.json.gz",
        "step-2/rollout-rank0.json.gz",
    ]
    for path in made:
        assert path.stat().st_mode & 0o777 == 0o600
        with gzip.open(path, "rt") as file:
            names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
        assert any(name.startswith("aten::") for name in names), sorted(names)[:50]
