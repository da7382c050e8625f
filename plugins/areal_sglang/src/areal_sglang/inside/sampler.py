"""Draw tokens so that the log-probs reported are of the very distribution drawn from, and seeds count.

SGLang's own sampler reports log-probs without its filters, and takes a seed only in its deterministic mode,
where every request that has none shares the seed 42. Here each request has a stream of its own: the uniform
behind a token is a hash of (request seed, position of the token), so a draw does not depend on who else is in
the batch, and a request that was interrupted goes on where it was.

Knows: the rows of one step, what each request asked for.
Does not know: how a token is drawn (`areal_torch.drawing`); logits, penalties, grammars: SGLang has applied them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.runtime_context import get_server_args
from torch import Tensor

from areal_sglang.inside.drawing import keep_best, stream_key
from areal_torch.drawing import draw, uniforms


def drawn(
    original: Callable[..., Any], sampler: Any, probs: Tensor, info: Any, positions: Tensor, simple: bool
) -> tuple[Tensor, None]:  # Any: SGLang's own
    """Hook of Sampler._sample_from_probs: draw a token per row of probs [R, V].

    Writes into probs what was drawn from; SGLang reports the logs of it. Greedy rows (top_k 1) keep their whole
    distribution: their log-prob is the model's own at temperature 1.
    """
    greedy = info.top_ks <= 1
    if not simple:
        filtered = ~greedy & ((info.top_ks < probs.shape[1]) | (info.top_ps < 1.0) | (info.min_ps > 0))
        rows = filtered.nonzero().flatten()
        if rows.numel():
            probs[rows] = keep_best(probs[rows], info.top_ks[rows], info.top_ps[rows], info.min_ps[rows])
    tokens = torch.where(greedy, probs.argmax(-1), draw(probs, uniforms(info.sampling_seed, positions)))
    return tokens.to(torch.int32), None


def with_streams(original: Callable[..., Any], cls: type, batch: Any, vocab_size: int) -> Any:  # Any: SGLang's own
    """Hook of SamplingBatchInfo.from_schedule_batch: give every request its stream."""
    info = original(cls, batch, vocab_size)
    engine_seed = get_server_args().random_seed or 0
    keys = [stream_key(req.sampling_params.sampling_seed, engine_seed, str(req.rid)) for req in batch.reqs]
    info.sampling_seed = torch.tensor(keys, dtype=torch.int64).to(batch.device, non_blocking=True)
    return info
