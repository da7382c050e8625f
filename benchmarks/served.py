"""A served engine through its plugin, against the engine's own benchmark client and a plain copy of the weights.

`python benchmarks/served.py vllm` (or sglang, or both) starts one server through the plugin and measures three things
on it; an engine without an environment (`areal env create vllm --device cpu`) is left out, and said to be:

    tokens    output tokens/s of the plugin / of a client that sends the same bodies
    update    seconds to receive, prove and load new weights / to copy the same bytes once in memory
    first     seconds from the call of `commit_weights` to the first token computed by the new weights

That client is the least a client can do: the very requests of the plugin, encoded beforehand, over connections that are
kept, their answers not looked at. The engine's own serving benchmark is a third side, told beside them: it streams
every token, so its server has more to do; it is a process of its own, whose start is not counted. The three take
turns; medians are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import frame
import msgspec
import torch

from areal_core.contract.errors import EngineMissing
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import GenerationRequest, InferenceSpec, SamplingParams
from areal_core.plugins.registry import default_registry
from areal_serving import environment
from areal_serving.engine import ServedEngine
from areal_serving.http import Api, ServerGone
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights

PROMPT, OUTPUT = 32, 96
ENGINES = ("vllm", "sglang")
HEAD = 32
"""The smallest attention head vLLM's CPU kernel takes."""
_CLIENT_TIMEOUT_S = 900.0
_VLLM_CLIENT = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def client(
    engine: str, python: str, url: str, key: str, model: Path, *, requests: int, concurrency: int, seed: int
) -> float:
    """Run the engine's own benchmark client; return its output tokens/s."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [python, "-c", _VLLM_CLIENT] if engine == "vllm" else [python, "-m", "sglang.bench_serving"]
        if engine == "vllm":
            command += ["--backend", "openai", "--endpoint", "/v1/completions", "--dataset-name", "random"]
            command += ["--served-model-name", "policy", "--save-result", "--result-filename", str(file)]
            command += ["--ignore-eos", "--logprobs", "0"]
        else:
            command += ["--backend", "sglang", "--dataset-name", "random-ids", "--tokenize-prompt"]
            command += ["--output-file", str(file), "--random-range-ratio", "1.0", "--return-logprob"]
        command += ["--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT)]
        command += ["--temperature", "1.0", "--seed", str(seed)]
        command += ["--base-url", url, "--model", str(model)]
        command += ["--num-prompts", str(requests), "--max-concurrency", str(concurrency)]
        environ = {**os.environ, "OPENAI_API_KEY": key, "API_KEY": key, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT_S)
        if not file.is_file():
            raise RuntimeError(f"the client of {engine} failed: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
        if int(result.get("completed", 0)) != requests:
            raise RuntimeError(f"the client of {engine} completed {result.get('completed')} of {requests} requests")
        return float(result["output_throughput"])


def make_requests(count: int, vocabulary: int) -> list[GenerationRequest]:
    """Return requests whose prompts nobody has seen before."""
    generator = torch.Generator().manual_seed(time.perf_counter_ns() % 2**31)
    prompts = torch.randint(3, vocabulary, (count, PROMPT), generator=generator).tolist()
    sampling = SamplingParams(max_new_tokens=OUTPUT, ignore_eos=True, temperature=1.0)
    return [
        GenerationRequest(request_id=RequestId(f"r{number}"), input_ids=tuple(prompt), sampling=sampling)
        for number, prompt in enumerate(prompts)
    ]


async def rate(calls: Sequence[Callable[[], Awaitable[int]]], concurrency: int) -> float:
    """Make calls, so many at once; return the tokens they counted per second."""
    room = asyncio.Semaphore(concurrency)

    async def one(call: Callable[[], Awaitable[int]]) -> int:
        async with room:
            return await call()

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(call) for call in calls)))
    return tokens / (time.perf_counter() - began)


async def through_the_plugin(engine: ServedEngine, requests: Sequence[GenerationRequest], concurrency: int) -> float:
    """Generate as a run does; return output tokens/s."""

    async def one(request: GenerationRequest) -> int:
        return len((await engine.generate(request)).output_ids)

    return await rate([functools.partial(one, request) for request in requests], concurrency)


class Tape(Api):
    """Writes down what a dialect would send, and sends nothing."""

    path, body = "", b""

    async def post(self, path: str, body: Any = None, **_: Any) -> Any:
        """Keep the route and the encoded body. Any: JSON."""
        self.path, self.body = path, msgspec.json.encode(body)
        raise ServerGone("a tape")


async def bare(engine: ServedEngine, requests: Sequence[GenerationRequest], concurrency: int) -> float:
    """Send the plugin's own bodies over kept connections and read the answers' bytes; return output tokens/s."""
    api, sent = engine.serving, []
    for request in requests:
        tape = Tape(api.url, "")
        call = engine.running.calls.call_for(request, OUTPUT)
        with contextlib.suppress(ServerGone):
            await engine.dialect.generate(tape, call)
        sent.append((api.url + tape.path, tape.body))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=api.headers, raise_for_status=True) as session:

        async def one(url: str, body: bytes) -> int:
            async with session.post(url, data=body) as response:
                await response.read()
            return OUTPUT

        return await rate([functools.partial(one, url, body) for url, body in sent], concurrency)


async def update(engine: ServedEngine, weights: FolderWeights, version: int) -> dict[str, float]:
    """Give the engine one more version; return seconds of each phase and of the first token after it."""
    began = time.perf_counter()
    await engine.receive_weights(weights.offer(version), version)
    received = time.perf_counter()
    await engine.commit_weights(version)
    committed = time.perf_counter()
    one = GenerationRequest(
        request_id=RequestId(f"first-{version}"),
        input_ids=(5, 9, 7, version % 50),
        sampling=SamplingParams(max_new_tokens=1),
    )
    generation = await engine.generate(one)
    if generation.version_spans[0].version != version:
        raise RuntimeError(f"the first token is of version {generation.version_spans[0].version}, not {version}")
    ended = time.perf_counter()
    return {"receive_s": received - began, "commit_s": committed - received, "first_token_s": ended - received}


def copy_seconds(weights: FolderWeights) -> float:
    """Return the seconds one plain copy of every tensor takes."""
    held = {name: torch.empty_like(tensor) for name, tensor in weights.tensors.items()}
    began = time.perf_counter()
    for name, tensor in weights.tensors.items():
        held[name].copy_(tensor)
    return time.perf_counter() - began


async def measure(name: str, folder: Path, large: Path, arguments: Any) -> dict[str, Any]:
    """Measure everything on two servers, one after the other. Any: json."""
    requests, concurrency = arguments.requests, arguments.concurrency
    python = str(environment.find(name, "cpu").path)
    table: dict[str, Any] = {"requests": requests, "concurrency": concurrency, "prompt": PROMPT, "output": OUTPUT}
    vocabulary = int(json.loads((folder / "config.json").read_text())["vocab_size"])
    engine: ServedEngine = default_registry().build("infer", name, {})
    await engine.start(InferenceSpec(model_path=str(folder), max_concurrent=concurrency))
    try:
        api = engine.serving
        key = api.headers.get("Authorization", "").removeprefix("Bearer ")
        rounds: dict[str, list[float]] = {"plugin": [], "client": [], "bare": []}
        for number in range(arguments.rounds + 1):
            seen = {
                "plugin": await through_the_plugin(engine, make_requests(requests, vocabulary), concurrency),
                "client": await asyncio.to_thread(
                    client,
                    *(name, python, api.url, key, folder),
                    requests=requests,
                    concurrency=concurrency,
                    seed=number,
                ),
                "bare": await bare(engine, make_requests(requests, vocabulary), concurrency),
            }
            if number:  # the first one warms up
                for side, found in seen.items():
                    rounds[side].append(found)
        table |= {f"{side}_tokens_per_s": statistics.median(found) for side, found in rounds.items()}
        table["plugin_to_bare"] = frame.Figure.of(rounds["plugin"], rounds["bare"])
        table["rounds"] = rounds
    finally:
        await engine.close()
    engine = default_registry().build("infer", name, {})
    await engine.start(InferenceSpec(model_path=str(large), max_concurrent=concurrency))
    try:
        weights = FolderWeights.of(large)
        table["update_megabytes"] = sum(tensor.nbytes for tensor in weights.tensors.values()) / 1e6
        updates, copies = [], []
        for version in range(1, arguments.rounds + 2):
            updates.append(await update(engine, weights, version))
            copies.append(copy_seconds(weights))
        table |= {key: statistics.median(one[key] for one in updates[1:]) for key in updates[0]}
        table["copy_s"] = statistics.median(copies[1:])
        whole = [one["receive_s"] + one["commit_s"] for one in updates[1:]]
        table["update_to_copy"] = frame.Figure.of(whole, copies[1:])
    finally:
        await engine.close()
    return table


def main() -> int:
    """Measure and report; the result is the ratio of tokens/s."""
    parser = frame.parser(__doc__)
    parser.add_argument("engine", nargs="?", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.rounds = 32, 1
    with tempfile.TemporaryDirectory() as scratch:
        make = functools.partial(make_tiny_model, vocab_size=512, head_dim=HEAD, max_position=1024)
        folder = make(Path(scratch) / "model")
        large = make(Path(scratch) / "large", hidden=64 if arguments.quick else 768, layers=12)
        for engine in ENGINES if arguments.engine == "both" else (arguments.engine,):
            try:
                environment.find(engine, "cpu")
            except EngineMissing as error:
                print(f"{engine} is left out: {error}", flush=True)
                continue
            table = asyncio.run(measure(engine, folder, large, arguments))
            result = frame.Result(
                name=f"served_{engine}",
                script="served",
                figure=table["plugin_to_bare"],
                what=f"tokens/s through the {engine} plugin / of the same bodies sent by a bare client",
                details=table,
            )
            frame.finish(result, quick=arguments.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
