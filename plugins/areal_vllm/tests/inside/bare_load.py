"""Run by vLLM's interpreter: load other weights with vLLM's bare loader, then with ours; print what came of it as JSON.

python bare_load.py SERVED_FOLDER OTHER_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm import LLM

from areal_serving.proof import read_tensors
from areal_vllm.inside import loading
from areal_vllm.inside.reading import weights_in_use


def num_new(runner: Any, folder: Path) -> int:
    """Return how many weights in use are those of the folder. Any: vLLM's runner."""
    in_use = weights_in_use(runner)
    return sum(torch.equal(in_use[name], tensor) for name, tensor in read_tensors(folder))


def main(served: str, other: str) -> None:
    """Load, look, load, look."""
    llm: Any = LLM(served, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**26, max_model_len=256)
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    told: dict[str, Any] = {"error": "", "num_tensors": len(dict(read_tensors(Path(other))))}
    try:
        runner.get_model().load_weights(read_tensors(Path(other)))
    except Exception as error:  # whichever it is, the model is what is looked at
        told["error"] = f"{type(error).__name__}: {error}"
    told["num_new_after_bare_load"] = num_new(runner, Path(other))
    loading.load_folder(runner, Path(other))
    told["num_new_after_ours"] = num_new(runner, Path(other))
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
