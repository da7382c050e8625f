"""Keep which experts computed a token, also where SGLang computes the token's keys and values again.

A request that makes room for others, or for new weights, loses its place and is computed again later, perhaps by other
weights. SGLang then reports the experts of that second time.

Knows: requests of the scheduler, SGLang's record of experts by place in the cache.
Does not know: how the record is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.moe.topk import TopK
from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer
from torch import nn

_NOTE = "areal_experts"

Original = Callable[..., Any]  # Any: SGLang's own


def described(model: nn.Module) -> dict[str, Any]:
    """Return the form of what SGLang reports: of how many layers, which of them have experts, how many a token."""
    record = get_global_experts_capturer()
    if record is None:
        return {}
    layers = sorted({module.layer_id for module in model.modules() if isinstance(module, TopK)})
    return {"num_layers": record.num_layers, "layers": layers, "per_token": record.topk_size}


def unregistered(original: Original, *args: Any, **kwargs: Any) -> None:
    """Hook of pool_host.common._cuda_host_register: memory is registered with a device where there is one."""
    if torch.cuda.is_available():
        original(*args, **kwargs)


def kept(original: Original, *, req: Any, req_to_token_pool: Any, **rest: Any) -> Any:
    """Hook of schedule_batch.release_req: keep the rows before their places are given to others."""
    rows = _rows(req, req_to_token_pool) if req.return_routed_experts else None
    saved = original(req=req, req_to_token_pool=req_to_token_pool, **rest)
    if rows is not None:
        setattr(req, _NOTE, rows)
    return saved


def collected(original: Original, processor: Any, req: Any) -> None:
    """Hook of SchedulerBatchResultProcessor._maybe_collect_routed_experts: kept rows first, then those made since."""
    rows, start = getattr(req, _NOTE, None), req.routed_experts_start_len
    if rows is None:
        original(processor, req)
        return
    req.routed_experts_start_len = start + len(rows)
    original(processor, req)
    req.routed_experts_start_len = start
    req.routed_experts = torch.cat([rows, req.routed_experts])


def _rows(req: Any, req_to_token_pool: Any) -> Any:
    """Return all rows up to the last token that was drawn, None if there is none. Any: a tensor of SGLang's."""
    record, earlier = get_global_experts_capturer(), getattr(req, _NOTE, None)
    length, start = len(req.origin_input_ids) + len(req.output_ids), req.routed_experts_start_len
    known = start + (0 if earlier is None else len(earlier))
    if record is None or not req.output_ids or known >= length - 1:
        return earlier
    rows = record.get_topk(req.kv.req_pool_idx, length, req_to_token_pool, start_len=known)
    return rows if earlier is None else torch.cat([earlier, rows])
