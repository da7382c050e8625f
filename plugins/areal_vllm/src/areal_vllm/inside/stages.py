"""Room for what a pipeline stage gets from the stage before it.

vLLM sets it apart in a warm-up of the whole model, which servers on the CPU leave out: compiled graphs and a measured
cache are what that is for.

Knows: vLLM's V1 model runner.
Does not know: which layers a stage has.
"""

from __future__ import annotations

from typing import Any


def make_room(runner: Any) -> None:
    """Set the room apart where it is missing, as the warm-up does. Idempotent. Any: vLLM's runner."""
    from vllm.distributed.parallel_state import get_pp_group

    if get_pp_group().is_first_rank or runner.intermediate_tensors is not None:
        return
    runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
    )
