"""How an SGLang server is told to trace its ranks: SGLang 0.5.23.

Knows: the routes, which any server has, and the names of its files.
Does not know: when a record begins and ends, or where its files end up (`areal_serving.profiling`).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from areal_serving.http import Api, ServerAnswer
from areal_serving.profiling import TRACED_PASSES
from areal_sglang.asking import ask


class SGLangProfiler:
    """The `ServerProfiler` of SGLang servers."""

    rank = re.compile(r"-TP-(\d+)")
    advice = "read the server's words in this log"

    async def start(self, api: Api, folder: Path) -> None:
        """Begin in every rank: what the host does, and the GPU if there is one."""
        settings = {
            "output_dir": str(folder),
            "with_stack": False,  # makes every operation several times as slow
            "record_shapes": True,
            "num_steps": TRACED_PASSES,
        }
        await api.text("/start_profile", settings)  # answers in prose, as its counterpart does

    async def stop(self, api: Api, folder: Path) -> None:
        """End, unless ranks ended by themselves: SGLang answers 500 then. They write before they answer a question."""
        await ask(api, "describe")
        if await asyncio.to_thread(_wrote, folder):
            return
        try:
            await api.text("/stop_profile")
        except ServerAnswer:  # it computes meanwhile, and may have ended after the question
            if not await asyncio.to_thread(_wrote, folder):
                raise


def _wrote(folder: Path) -> bool:
    return any(folder.glob("*.json.gz"))
