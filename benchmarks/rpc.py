"""Bytes per second through Worker.call with a large tensor, against memcpy; and calls per second.

A real worker process of the local scheduler, encrypted and authenticated as in every run.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import frame
import torch

from areal_core.contract.ids import RequestId
from areal_core.contract.inference import GenerationRequest, InferenceSpec, SamplingParams
from areal_core.contract.scheduler import Job, Worker
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler

ENGINE = Path(__file__).with_name("echo_engine.py")
IN_FLIGHT = 64


async def compared(worker: Worker, payload: torch.Tensor, repeats: int) -> dict[str, frame.Timing]:
    """Time a call that carries the payload there and a token back, and a copy of it to memory that is there already."""
    target = torch.empty_like(payload)
    seconds: dict[str, list[float]] = {"call": [], "memcpy": []}
    for number in range(repeats + 1):
        request = GenerationRequest(request_id=RequestId("r"), input_ids=(3,), extras={"payload": payload})
        began = time.perf_counter()
        answer = await worker.call("generate", request, timeout_s=120.0)
        answered = time.perf_counter()
        target.copy_(payload)
        copied = time.perf_counter()
        assert answer.output_ids == (int(payload[-1]),)
        if number:  # the first one warms up
            seconds["call"].append(answered - began)
            seconds["memcpy"].append(copied - answered)
    return {name: frame.Timing.of(values) for name, values in seconds.items()}


async def calls_per_second(worker: Worker, num_calls: int, in_flight: int) -> float:
    """Make generate calls like those of a rollout, `in_flight` at once."""
    request = GenerationRequest(
        request_id=RequestId("train/0/17#3"),
        input_ids=range(100),
        sampling=SamplingParams(max_new_tokens=64, seed=7),
    )

    async def caller(count: int) -> None:
        for _ in range(count):
            await worker.call("generate", request, timeout_s=60.0)

    await caller(10)
    began = time.perf_counter()
    await asyncio.gather(*(caller(num_calls // in_flight) for _ in range(in_flight)))
    return num_calls // in_flight * in_flight / (time.perf_counter() - began)


async def measure(quick: bool) -> frame.Result:
    """Start the worker and measure everything over the one connection."""
    num_bytes, repeats, num_calls = (8 << 20, 3, 128) if quick else (256 << 20, 9, 6400)
    payload = torch.arange(num_bytes, dtype=torch.int64).to(torch.uint8)
    with tempfile.TemporaryDirectory() as logs:
        scheduler = LocalScheduler(LocalConfig(log_dir=logs))
        try:
            job = Job(role="echo", engine_role="infer", backend="echo", num_workers=1, imports=(str(ENGINE),))
            (worker,) = await scheduler.submit(job)
            await worker.call("start", InferenceSpec(model_path=""), timeout_s=60.0)
            timing = await compared(worker, payload, repeats)
            sequential = await calls_per_second(worker, num_calls, 1)
            concurrent = await calls_per_second(worker, num_calls, IN_FLIGHT)
        finally:
            await scheduler.close()
    return frame.Result(
        name="rpc",
        figure=frame.Figure.of(timing["memcpy"].seconds, timing["call"].seconds),
        what=f"GB/s of a {num_bytes >> 20} MiB call / of memcpy",
        details={
            "call_gb_per_s": num_bytes / timing["call"].median / 1e9,
            "memcpy_gb_per_s": num_bytes / timing["memcpy"].median / 1e9,
            "calls_per_s_sequential": sequential,
            f"calls_per_s_{IN_FLIGHT}_in_flight": concurrent,
            "bytes": num_bytes,
            "timing": timing,
        },
    )


def main() -> int:
    """Measure and report."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    return frame.finish(frame.run(measure(options.quick)), quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
