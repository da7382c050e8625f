"""How a vLLM server is told to trace its ranks: vLLM 0.32 and 0.33.

Knows: `--profiler-config`, without which vLLM has no such routes, and the names of its files.
Does not know: when a record begins and ends, or where its files end up (`areal_serving.profiling`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from areal_serving.http import Api
from areal_serving.profiling import TRACED_TOKENS, WRITE_TIMEOUT_S

ARGUMENT = "--profiler-config"


def traced(folder: Path | None) -> Mapping[str, str | None]:
    """Return the arguments of a server that is to be traced into `folder`; none for None."""
    if folder is None:
        return {}
    settings = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_stack": False,  # makes every operation several times as slow
        "torch_profiler_dump_cuda_time_total": False,  # a table that takes longer than the trace
        "ignore_frontend": True,
        "max_iterations": TRACED_TOKENS,
    }
    return {ARGUMENT: json.dumps(settings)}


class VLLMProfiler:
    """The `ServerProfiler` of vLLM servers."""

    rank = re.compile(r"rank(\d+)\.")
    advice = (
        """a server of rollout.options.url can be traced if it was started with --profiler-config '{"profiler": """
        """"torch", "torch_profiler_dir": "FOLDER"}', and its files are in that FOLDER; so they are if """
        f"rollout.options.server_args have another {ARGUMENT}"
    )

    async def start(self, api: Api, folder: Path, device: str) -> None:
        """Begin; where to was said when the server was started."""
        await api.post("/start_profile")

    async def stop(self, api: Api, folder: Path) -> None:
        """End, also a record that ended by itself: vLLM begins no other before."""
        await api.post("/stop_profile", timeout_s=WRITE_TIMEOUT_S)
