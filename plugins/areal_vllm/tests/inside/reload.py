"""Run by vLLM's interpreter: reload a model as vLLM does, then as we do; print the tokens as JSON.

python reload.py SERVED_FOLDER OTHER_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from areal_vllm.inside import loading

PROMPT = [5, 9, 7, 30]


def main(served: str, other: str) -> None:
    """Reload, generate, reload, generate."""
    llm: Any = LLM(served, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**26, max_model_len=256)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def tokens() -> list[int]:
        greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False)
        return list(llm.generate({"prompt_token_ids": PROMPT}, greedy, use_tqdm=False)[0].outputs[0].token_ids)

    told = {"prompt": PROMPT}
    runner.reload_weights(weights_path=other)
    told["vllm"] = tokens()
    loading.load_folder(runner, Path(other))
    told["ours"] = tokens()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
