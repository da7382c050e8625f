"""A user's file with a torch-free engine whose requests say how to behave. Read by workers through `imports`."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import subprocess
import sys

from attrs import frozen

from areal_core.contract import EngineInfo, EngineStatus, Generation, StopReason
from areal_core.contract.errors import PromptTooLong
from areal_core.plugins.marks import Mark

VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PROBE")


def _child() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


@frozen(kw_only=True)
class ProbeConfig:
    children: int = 0


class ProbeInference:
    """`extras["do"]` of a request names what `generate` does; the answer's ids are those asked for."""

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config
        self.cancelled = 0
        self.running = 0

    async def start(self, spec):
        children = [_child() for _ in range(self.config.children)]
        details = {"children": " ".join(map(str, children)), "torch": str("torch" in sys.modules)}
        details |= {
            name: os.environ.get(name, "unset") for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PROBE")
        }
        return EngineInfo(
            engine="probe", engine_version="1", device="cpu", num_parameters=0, context_length=9, details=details
        )

    async def generate(self, request):
        self.running += 1
        try:
            return await self._generate(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _generate(self, request):
        match request.extras.get("do"):
            case "hang":
                await asyncio.Event().wait()
            case "raise":
                raise ZeroDivisionError("no tokens \ud800 at all")
            case "refuse":
                raise PromptTooLong("too long", why="9 > 8", fix="shorten it")
            case "cancel itself":
                raise asyncio.CancelledError
            case "exit":
                print("these are my last words", flush=True)
                os._exit(3)
            case "break the way out":
                atexit.register(os._exit, 6)
            case "hold the lock":
                ctypes.PyDLL(None).usleep(int(request.extras["seconds"] * 1e6))
        count = len(request.input_ids)
        return Generation(
            output_ids=request.input_ids, logprobs=(-0.5,) * count, version_spans=(), stop_reason=StopReason.STOP
        )

    async def status(self):
        return EngineStatus(
            version=0, num_running=self.running, num_waiting=0, paused=False, metrics={"cancelled": self.cancelled}
        )

    async def close(self):
        print("closed in good order", flush=True)


ProbeInference.__areal__ = (Mark("infer", "probe", ProbeConfig),)
