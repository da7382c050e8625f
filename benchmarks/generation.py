"""Reference generator against transformers' generate: the same model, sampling, batch and machine, in one run.

`equal`: every request makes the same number of tokens, the best case for a static batch. `ragged`: lengths are
uniform between 3 and 70, as answers are; a static batch waits for its longest. `sorted`: the same, but the static
batches are told the lengths beforehand and take requests of like length together, which no trainer can know; ours get
them as they come.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame
import torch
import workload
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from areal_core.contract.inference import GenerationRequest, InferenceSpec
from areal_reference.infer.config import ReferenceInferenceConfig
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import ask

PROMPT, EQUAL, RAGGED = 8, 32, (3, 70)


def requests(lengths: Sequence[int], vocabulary: int, name: str) -> list[GenerationRequest]:
    """Return one request per length; groups of eight share a prompt."""
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(3, vocabulary) for _ in range(PROMPT)) for _ in range(-(-len(lengths) // 8))]
    return [
        ask(*prompts[n // 8], name=f"{name}{n}", seed=n, max_new_tokens=length, ignore_eos=True)
        for n, length in enumerate(lengths)
    ]


async def ours(engine: ReferenceInferenceEngine, work: list[GenerationRequest]) -> dict[str, float]:
    """Time one load on the engine."""
    before, started = await engine.status(), time.perf_counter()
    outputs = await asyncio.gather(*(engine.generate(request) for request in work))
    seconds, after = time.perf_counter() - started, await engine.status()
    steps = after.metrics["steps"] - before.metrics["steps"]
    return {
        "tokens_per_s": sum(len(output.output_ids) for output in outputs) / seconds,
        "ms_per_step": 1e3 * (after.busy_s - before.busy_s) / steps,
    }


def theirs(model: torch.nn.Module, work: list[GenerationRequest], batch: int) -> dict[str, float]:
    """Time the same load as static batches; a batch runs to its longest request."""
    steps, tokens, started = 0, 0, time.perf_counter()
    for first in range(0, len(work), batch):
        part = work[first : first + batch]
        ids = torch.tensor([request.input_ids for request in part], device=model.device)
        longest = max(request.sampling.max_new_tokens for request in part)
        model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=longest,
        )
        steps += longest
        tokens += sum(request.sampling.max_new_tokens for request in part)
    seconds = time.perf_counter() - started
    return {"tokens_per_s": tokens / seconds, "ms_per_step": 1e3 * seconds / steps}


async def measure(folder: Path, batch: int, rounds: int, device: str) -> dict[str, dict[str, Any]]:
    """Alternate both sides and return the figure of each load, with the medians it is made of. Any: json."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    model.generation_config.eos_token_id = None  # as `ignore_eos`: nothing to look for, and nothing to forbid
    vocabulary, draw = int(model.config.vocab_size), random.Random(1)
    ragged = [draw.randint(*RAGGED) for _ in range(4 * batch)]
    loads = {"equal": [EQUAL] * batch, "ragged": ragged, "sorted": ragged}
    engines = {}
    for name, deterministic in (("reference", False), ("deterministic", True)):
        engines[name] = ReferenceInferenceEngine(ReferenceInferenceConfig(deterministic=deterministic))
        await engines[name].start(
            InferenceSpec(model_path=str(folder), max_concurrent=batch, device=device, dtype=dtype)
        )
    table: dict[str, dict[str, Any]] = {}
    for load, lengths in loads.items():
        work, seen = requests(lengths, vocabulary, load), dict[str, list[dict[str, float]]]()
        static = sorted(work, key=lambda each: each.sampling.max_new_tokens) if load == "sorted" else work
        for _ in range(rounds + 1):
            for name, engine in engines.items():
                seen.setdefault(name, []).append(await ours(engine, work))
            seen.setdefault("transformers", []).append(theirs(model, static, batch))
        rounds_of = {
            f"{name}_{key}": [each[key] for each in results[1:]] for name, results in seen.items() for key in results[0]
        }
        table[load] = {
            **{name: statistics.median(values) for name, values in rounds_of.items()},
            "rounds": rounds_of,
            "figure": frame.Figure.of(rounds_of["reference_tokens_per_s"], rounds_of["transformers_tokens_per_s"]),
        }
    for engine in engines.values():
        await engine.close()
    return table


def _size(device: str) -> str:
    return "tiny" if device == "cpu" else "medium"


def _made(scratch: Path, device: str) -> Path:
    if device == "cpu":
        return make_tiny_model(scratch / "model", vocab_size=30)
    return workload.make_model(scratch, _size(device))


def main() -> int:
    """Measure and report; the result is that of the sorted load."""
    parser = frame.parser(__doc__)
    parser.add_argument(
        "--model", type=Path, help="a model folder; one of 76k parameters is made if not given, on a GPU of 0.3 billion"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: in bfloat16")
    arguments = parser.parse_args()
    frame.one_thread()
    batch, rounds = (8, 1) if arguments.quick else (arguments.batch, arguments.rounds)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.model or _made(Path(scratch), arguments.device)
        table = asyncio.run(measure(folder, batch, rounds, arguments.device))
    result = frame.Result(
        name="generation" if arguments.device == "cpu" else f"generation_{arguments.device}",
        script="generation",
        figure=table["sorted"]["figure"],
        what="tokens/s of the reference generator / of transformers' generate on inputs sorted by length",
        details={
            "batch": batch,
            "model": str(arguments.model or _size(arguments.device)),
            "threads": torch.get_num_threads(),
            **table,
        },
    )
    return frame.finish(result, quick=arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
