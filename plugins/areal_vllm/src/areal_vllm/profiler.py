"""How a vLLM server is told to trace its ranks: vLLM 0.32 and 0.33.

Knows: `--profiler-config`, without which vLLM has no such routes, and the names of its files.
Does not know: when a record begins and ends, or where its files end up (`areal_serving.profiling`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from areal_serving.http import Api
from areal_serving.profiling import TRACED_PASSES


def profiler_config(folder: Path) -> str:
    """Return what a server that is to be traced into `folder` is started with."""
    settings = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_stack": False,  # makes every operation several times as slow
        "torch_profiler_dump_cuda_time_total": False,  # a table that takes longer than the trace
        "ignore_frontend": True,
        "max_iterations": TRACED_PASSES,
    }
    return json.dumps(settings)


class VLLMProfiler:
    """The `ServerProfiler` of vLLM servers."""

    rank = re.compile(r"rank(\d+)\.")
    advice = (
        "read the server's words in this log; on NPUs vLLM is not traced, and a --profiler-config in "
        "rollout.options.server_args takes the place of the run's"
    )

    async def start(self, api: Api, folder: Path) -> None:
        """Begin; where to was said when the server was started."""
        await api.post("/start_profile")

    async def stop(self, api: Api, folder: Path) -> None:
        """End, also a record that ended by itself: vLLM begins no other before."""
        await api.post("/stop_profile")
