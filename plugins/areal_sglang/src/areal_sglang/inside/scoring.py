"""Report log-probs of given tokens at the temperature asked for.

SGLang reports log-probs of input tokens at temperature 1, whatever the request says.

Knows: the rows of one step whose log-probs are of input tokens, and the temperature of each request.
Does not know: which tokens they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NOTE = "areal_temperatures"


def noted(original: Callable[..., Any], cls: type, forward_batch: Any) -> Any:  # Any: SGLang's own
    """Hook of LogitsMetadata.from_forward_batch: keep the requests' temperatures [B, 1] beside the rest."""
    metadata = original(cls, forward_batch)
    info = getattr(forward_batch, "sampling_info", None)
    setattr(metadata, _NOTE, None if info is None else info.temperatures)
    return metadata


def at_temperature(
    original: Callable[..., Any],
    processor: Any,
    states: Tensor,
    sample_indices: Tensor,
    input_indices: Tensor,
    request_of_row: list[int],
    head: Any,
    logits_of: Callable[..., Tensor],
    metadata: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Hook of InputLogprobProcessor._forward_by_chunk: divide the logits of input rows by their temperature.

    A row that a token is drawn from may be an input row too, where a request was moved back to the queue: its logits
    are returned as they were, for the sampler divides them.
    """
    temperatures: Tensor | None = getattr(metadata, _NOTE, None)
    if temperatures is None or not input_indices.numel():
        rest = (head, logits_of, metadata, *args)
        return original(processor, states, sample_indices, input_indices, request_of_row, *rest, **kwargs)
    requests = torch.tensor(request_of_row, dtype=torch.int64, device=states.device)[input_indices]
    heat = torch.ones(states.shape[0], 1, dtype=torch.float32, device=states.device)
    heat[input_indices] = temperatures[requests]
    start = 0
    sampled: list[Tensor] = []

    def scaled(rows: Tensor, *more: Any, **options: Any) -> Tensor:
        nonlocal start
        stop = start + rows.shape[0]
        logits = logits_of(rows, *more, **options)
        first, last = (bisect_left(metadata.sample_indices_cpu, place) for place in (start, stop))
        sampled.append(logits[sample_indices[first:last] - start])
        logits = logits / heat[start:stop].to(logits.dtype)
        start = stop
        return logits

    rest = (head, scaled, metadata, *args)
    found, _ = original(processor, states, sample_indices, input_indices, request_of_row, *rest, **kwargs)
    return found, torch.cat(sampled)
