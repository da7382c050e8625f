"""How the toy server is spoken to, and an engine over it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web
from attrs import define, field

from areal_core.contract.inference import GenerationRequest, InferenceSpec, VersionSpan
from areal_core.contract.train import LoraSpec
from areal_serving.adapter_routes import AdapterRoutes
from areal_serving.dialect import Call, Command, Gauges, Launch, Reply, ServerFacts
from areal_serving.engine import ServedEngine
from areal_serving.http import Api
from areal_serving.options import ServedOptions
from areal_serving.policy_adapter import PolicyRoutes
from areal_serving.server import free_port
from areal_torch.testing.serving import FolderWeights

from .toy_server import Toy

SERVER = Path(__file__).with_name("toy_server.py")


@define
class ToyDialect:
    """Says what the toy understands; remembers what it was asked to launch, and takes further arguments for it."""

    arguments: list[str] = field(factory=list)
    launches: list[Launch] = field(factory=list)
    name: str = "toy"
    logprob: float = -0.5

    def command(self, launch: Launch) -> Command:
        self.launches.append(launch)
        argv = [launch.python, str(SERVER), "--port", str(launch.port), "--model", launch.spec.model_path]
        return Command(argv=(*argv, *self.arguments), environ={"TOY_KEY": launch.key})

    def blames_model(self, tail: str) -> bool:
        return "bad model" in tail

    async def facts(self, api: Api) -> ServerFacts:
        found = await api.get("/facts")
        return ServerFacts(engine_version=found["version"], context_length=found["context_length"])

    async def healthy(self, api: Api) -> bool:
        await api.get("/health", timeout_s=1.0)
        return True

    async def generate(self, api: Api, call: Call) -> Reply:
        body = {
            "id": call.server_id,
            "ids": call.request.input_ids,
            "max_tokens": call.max_tokens,
            "min_tokens": call.min_tokens,
            "end_ids": call.end_ids,
            "space": call.cache_space,
            "seed": call.seed,
            "adapter": call.request.adapter,
        }
        answer = await api.post("/generate", body, timeout_s=None)
        spans = [VersionSpan(start=n, stop=n + 1, version=version) for n, version in enumerate(answer["versions"])]
        logprobs = [self.logprob] * len(spans)
        return Reply(
            output_ids=answer["ids"],
            logprobs=logprobs,
            spans=spans,
            finish=answer["finish"],
            cached_tokens=answer["cached"],
        )

    async def abort(self, api, server_ids):
        await api.post("/abort", {"ids": server_ids})

    async def pause(self, api, mode):
        await api.post("/pause", {"mode": mode.value})

    async def resume(self, api):
        await api.post("/resume")

    async def prove(self, api, folder):
        return await api.post("/prove", {"folder": str(folder)})

    async def load(self, api, folder, version, *, keep_cache):
        await api.post("/load", {"folder": str(folder), "version": version, "keep": keep_cache})

    async def gauges(self, api: Api) -> Gauges:
        found = await api.get("/gauges")
        return Gauges(num_running=found["running"], num_waiting=found["waiting"], tokens_generated=found["tokens"])


ROUTES = AdapterRoutes(
    engine="toy",
    load_path="/load_adapter",
    unload_path="/unload_adapter",
    is_there=lambda error: "already" in error.text,
    is_gone=lambda error: error.status == 404,
)


async def stamp(api: Api, version: int) -> None:
    await api.post("/stamp", {"version": version})


class ToyProfiler:
    """Says what the toy's profiler understands."""

    rank = re.compile(r"_rank(\d+)\.")
    advice = "start the toy with more"

    async def start(self, api, folder):
        await api.post("/start_profile", {"folder": str(folder)})

    async def stop(self, api, folder):
        await api.post("/stop_profile")


class Looks:
    """A clock that counts looks instead of seconds: each sleep moves it by at most one, and takes a moment."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += min(seconds, 1.0)
        await asyncio.sleep(0.01)


class ToyEngine(ServedEngine):
    """The shared engine over a toy server, and what a test asks of both."""

    def __init__(
        self,
        dialect: ToyDialect | None = None,
        *,
        clock=time.perf_counter,
        dialect_of_ranks=None,
        profiler=None,
        **options,
    ) -> None:
        self.toy = dialect or ToyDialect()
        self.looks = Looks()
        served = ServedOptions(**{"hang_timeout_s": 1e6, **options})
        parts = {"direct": dialect_of_ranks, "profiler": profiler, "clock": clock, "patience": self.looks}
        policy = PolicyRoutes(load=ROUTES.load, unload=ROUTES.unload, stamp=stamp)
        super().__init__(self.toy, served, policy=policy, **parts)

    def interpreter(self, spec):
        return sys.executable

    async def step(self, tokens: int = 1) -> None:
        """Have the server compute so many tokens for every request it has."""
        await (await self.running.server.api()).post("/step", {"tokens": tokens})

    async def misbehave(self, route: str, how: str, times: int = 1) -> None:
        """Have the server do `how` the next times `route` is called: die, hang, drop, lie, or answer a status."""
        await (await self.running.server.api()).post("/misbehave", {"route": route, "how": how, "times": times})

    async def story(self) -> list[str]:
        """Return what this server was told, in order."""
        return await (await self.running.server.api()).get("/story")

    async def facts(self):
        """Return the server's process id, arguments and environment."""
        return await (await self.running.server.api()).get("/facts")

    async def until_in_server(self, count: int) -> None:
        """Wait until the server has that many requests."""
        while True:
            gauges = await self.toy.gauges(await self.running.server.api())
            if gauges.num_running + gauges.num_waiting == count:
                return

    async def until(self, condition) -> None:
        """Look at `condition` whenever the event loop turned."""
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def started(
    model: Path, dialect: ToyDialect | None = None, *, concurrent: int = 8, lora: LoraSpec | None = None, **options
):
    """Run an engine with a server process of its own."""
    engine = ToyEngine(dialect, **options)
    await engine.start(InferenceSpec(model_path=str(model), max_concurrent=concurrent, lora=lora))
    try:
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def beside(model: Path, *, key: str = "", **options) -> AsyncIterator[tuple[ToyEngine, Toy]]:
    """Run an engine whose server lives in this event loop, as one that somebody else runs."""
    toy, port = Toy(str(model), key=key), free_port()
    runner = web.AppRunner(toy.app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    concurrent = options.pop("concurrent", 8)
    engine = ToyEngine(url=f"http://127.0.0.1:{port}", **options)
    try:
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=concurrent))
        yield engine, toy
    finally:
        await engine.close()
        await runner.cleanup()


def ask_many(engine: ServedEngine, requests: list[GenerationRequest]) -> list[asyncio.Task]:
    """Begin to generate for each."""
    return [asyncio.ensure_future(engine.generate(request)) for request in requests]


def other_weights(model: Path, added: float = 1.0) -> FolderWeights:
    """Return the model's weights with a number added to each."""
    weights = FolderWeights.of(model)
    return FolderWeights({name: tensor + added for name, tensor in weights.tensors.items()}, weights.tied)


async def kill_server(engine: ToyEngine) -> None:
    """Kill the server as the kernel does when memory runs out."""
    os.kill((await engine.facts())["pid"], signal.SIGKILL)


def restarts(engine: ToyEngine) -> int:
    """Return how often the server was started again."""
    return engine.running.server.num_restarts
