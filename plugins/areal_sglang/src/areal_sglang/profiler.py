"""How an SGLang server is told to trace its ranks: SGLang 0.5.23.

Knows: the routes, which any server has, and the names of its files.
Does not know: when a record begins and ends, or where its files end up (`areal_serving.profiling`).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from areal_serving.http import Api
from areal_serving.profiling import TRACED_TOKENS, WRITE_TIMEOUT_S
from areal_sglang.asking import ask

_ACTIVITIES = {"cpu": ["CPU"], "xpu": ["CPU", "XPU"]}
"""By kind of device; SGLang takes "GPU" for every other."""


class SGLangProfiler:
    """The `ServerProfiler` of SGLang servers."""

    rank = re.compile(r"-TP-(\d+)")
    advice = "read the server's words in this log; one of rollout.options.url must run on this machine"

    async def start(self, api: Api, folder: Path, device: str) -> None:
        """Begin in every rank."""
        settings = {
            "output_dir": str(folder),
            "activities": _ACTIVITIES.get(device.partition(":")[0], ["CPU", "GPU"]),
            "with_stack": False,  # makes every operation several times as slow
            "record_shapes": True,
            "num_steps": TRACED_TOKENS,
        }
        await api.post("/start_profile", settings)

    async def stop(self, api: Api, folder: Path) -> None:
        """End, unless ranks ended by themselves: SGLang answers 500 then. It writes before it answers anything else."""
        await ask(api, "describe", timeout_s=WRITE_TIMEOUT_S)
        if not await asyncio.to_thread(_wrote, folder):
            await api.post("/stop_profile", timeout_s=WRITE_TIMEOUT_S)


def _wrote(folder: Path) -> bool:
    return any(folder.glob("*.json.gz"))
