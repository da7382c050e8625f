"""Whose adapter vLLM's head adds to rows that are not one per request.

In a server that takes adapters the head has one adapter per request of a step, for the one row whose token is sampled.
A prompt that is scored has a row per token; beside other requests they matched no adapter, which ended the server.

Knows: vLLM's V1 model runner, its layers with adapters.
Does not know: what the rows are computed for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def rows_of(runner: Any, name: str) -> Iterator[None]:
    """Have all logits computed meanwhile be of one request of the step. Any: vLLM's runner."""
    row = runner.input_batch.req_id_to_index.get(name)
    adapters = None if row is None or runner.lora_config is None else _adapters(runner.model)
    if adapters is None:
        yield
        return
    of_requests, count = adapters._sampler_indices, adapters.indices_len[1]
    plain = runner.model.compute_logits

    def of_one(hidden_states: Any) -> Any:
        num_rows = hidden_states.shape[0]
        adapters._sampler_indices, adapters.indices_len[1] = of_requests[row].expand(num_rows), num_rows
        return plain(hidden_states)

    runner.model.compute_logits = of_one
    try:
        yield
    finally:
        del runner.model.compute_logits
        adapters._sampler_indices, adapters.indices_len[1] = of_requests, count


def _adapters(model: Any) -> Any:
    """Return what the head asks for the adapter of each row; None if it has none."""
    from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA

    heads = (module for module in model.modules() if isinstance(module, LogitsProcessorWithLoRA))
    return next((head.punica_wrapper for head in heads), None)
