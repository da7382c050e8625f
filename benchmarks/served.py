"""A served engine through its plugin, against the engine's own benchmark client and a plain copy of the weights.

`python benchmarks/served.py vllm` (or sglang) starts one server through the plugin and measures three things on it:

    tokens    output tokens/s of the plugin / of the engine's own serving benchmark, equal requests and concurrency
    update    seconds to receive, prove and load new weights / to copy the same bytes once in memory
    first     seconds from the call of `commit_weights` to the first token computed by the new weights
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame
import torch

from areal_core.contract.inference import GenerationRequest, InferenceSpec, SamplingParams
from areal_core.plugins.registry import default_registry
from areal_core.serving import environment
from areal_core.serving.engine import ServedEngine
from areal_core.testing.models import make_tiny_model
from areal_core.testing.serving import FolderWeights

PROMPT, OUTPUT = 32, 96
_CLIENT_TIMEOUT_S = 900.0


def client(engine: str, python: str, url: str, key: str, model: Path, *, requests: int, concurrency: int) -> float:
    """Run the engine's own benchmark client; return its output tokens/s."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        if engine == "vllm":
            code = "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"
            command = [python, "-c", code, "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions"]
            command += ["--served-model-name", "policy", "--save-result", "--result-filename", str(file)]
            command += ["--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT), "--ignore-eos"]
            command += ["--temperature", "1.0", "--logprobs", "0"]
        else:
            command = [python, "-m", "sglang.bench_serving", "--backend", "sglang", "--output-file", str(file)]
            command += ["--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT)]
            command += ["--random-range-ratio", "1.0", "--extra-request-body", '{"return_logprob": true}']
        command += ["--base-url", url, "--model", str(model), "--dataset-name", "random"]
        command += ["--num-prompts", str(requests), "--max-concurrency", str(concurrency)]
        environ = {**os.environ, "OPENAI_API_KEY": key, "API_KEY": key, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT_S)
        if not file.is_file():
            raise RuntimeError(f"the client of {engine} failed: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
        if int(result.get("completed", 0)) != requests:
            raise RuntimeError(f"the client of {engine} completed {result.get('completed')} of {requests} requests")
        return float(result["output_throughput"])


async def through_the_plugin(engine: ServedEngine, requests: int, concurrency: int, vocabulary: int) -> float:
    """Generate for as many requests of the same lengths, as many at once; return output tokens/s."""
    generator = torch.Generator().manual_seed(time.perf_counter_ns() % 2**31)  # no prompt was seen before
    prompts = torch.randint(3, vocabulary, (requests, PROMPT), generator=generator).tolist()
    room, tokens = asyncio.Semaphore(concurrency), 0

    async def one(number: int, prompt: Sequence[int]) -> int:
        async with room:
            request = GenerationRequest(
                request_id=f"r{number}",  # type: ignore[arg-type]
                input_ids=tuple(prompt),
                sampling=SamplingParams(max_new_tokens=OUTPUT, ignore_eos=True, temperature=1.0),
            )
            return len((await engine.generate(request)).output_ids)

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts))))
    return tokens / (time.perf_counter() - began)


async def update(engine: ServedEngine, weights: FolderWeights, version: int) -> dict[str, float]:
    """Give the engine one more version; return seconds of each phase and of the first token after it."""
    began = time.perf_counter()
    await engine.receive_weights(weights.offer(version), version)
    received = time.perf_counter()
    await engine.commit_weights(version)
    committed = time.perf_counter()
    one = GenerationRequest(
        request_id=f"first-{version}",  # type: ignore[arg-type]
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
        api = await engine._api()
        key = api._headers.get("Authorization", "").removeprefix("Bearer ")
        ours, theirs = [], []
        for number in range(arguments.rounds + 1):
            mine = await through_the_plugin(engine, requests, concurrency, vocabulary)
            other = await asyncio.to_thread(
                client, name, python, api.url, key, folder, requests=requests, concurrency=concurrency
            )
            if number:
                ours.append(mine)
                theirs.append(other)
        table |= {"plugin_tokens_per_s": statistics.median(ours), "client_tokens_per_s": statistics.median(theirs)}
        table["rounds"] = {"plugin": ours, "client": theirs}
    finally:
        await engine.close()
    engine = default_registry().build("infer", name, {})
    await engine.start(InferenceSpec(model_path=str(large), max_concurrent=concurrency))
    try:
        weights = FolderWeights.of(large)
        table["update_megabytes"] = sum(tensor.nbytes for tensor in weights.tensors.values()) / 1e6
        seen = [await update(engine, weights, version) for version in range(1, arguments.rounds + 2)][1:]
        copies = [copy_seconds(weights) for _ in range(arguments.rounds + 1)][1:]
        table |= {key: statistics.median(one[key] for one in seen) for key in seen[0]}
        table["copy_s"] = statistics.median(copies)
        table["update_to_copy"] = (table["receive_s"] + table["commit_s"]) / table["copy_s"]
    finally:
        await engine.close()
    return table


def main() -> int:
    """Measure and report; the result is the ratio of tokens/s."""
    parser = frame.parser(__doc__)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.rounds = 32, 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_tiny_model(Path(scratch) / "model", vocab_size=512, max_position=1024)
        large = make_tiny_model(
            Path(scratch) / "large", vocab_size=512, hidden=64 if arguments.quick else 768, layers=12, max_position=1024
        )
        table = asyncio.run(measure(arguments.engine, folder, large, arguments))
    result = frame.Result(
        name=f"served_{arguments.engine}",
        script="served",
        ratio=table["plugin_tokens_per_s"] / table["client_tokens_per_s"],
        target=0.95,
        what=f"tokens/s through the {arguments.engine} plugin / through the engine's own benchmark client",
        details=table,
    )
    return frame.finish(result, quick=arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
