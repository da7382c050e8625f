"""Penalise what was really generated, in the order the contract says.

While steps overlap, SGLang counts the last token one step late, and the last token of the prompt in its place; it
forgets what was generated before a request was moved back to the queue; and it subtracts before it divides.

Knows: SGLang's penalizers, the step that is computed and not read.
Does not know: how tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from areal_sglang.inside.ends import prior_tokens

Original = Callable[..., Any]  # Any: SGLang's own

_schedulers: list[Any] = []
"""The one of this process, once it has run a step."""


def remembered(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of Scheduler.run_batch: a batch does not know whose it is."""
    if not _schedulers:
        _schedulers.append(scheduler)
    return original(scheduler, *args, **kwargs)


def latest(original: Original, batch: Any) -> None:
    """Hook of ScheduleBatch.cumulate_penalty_output_tokens: count the token before this one, read or not."""
    device = batch.device
    tokens = torch.tensor([(req.output_ids or req.origin_input_ids)[-1] for req in batch.reqs], dtype=torch.int64)
    tokens = tokens.to(device)
    places = {id(req): place for place, req in enumerate(batch.reqs)}
    for other, result in getattr(_schedulers[0], "result_queue", ()):
        rows = [row for row, req in enumerate(other.reqs) if id(req) in places and req.inflight_middle_chunks <= 0]
        if rows:
            if result.copy_done is not None:
                result.copy_done.synchronize()
            drawn = result.next_token_ids[rows].to(device=device, dtype=torch.int64)
            tokens[[places[id(other.reqs[row])] for row in rows]] = drawn
    batch.sampling_info.penalizer_orchestrator.cumulate_output_tokens(tokens)


def frequency(original: Original, penalizer: Any) -> None:
    """Hook of BatchedFrequencyPenalizer._prepare: begin with what was generated before."""
    original(penalizer)
    for row, earlier in _earlier(penalizer):
        share = penalizer.frequency_penalties[row].expand(len(earlier))
        penalizer.cumulated_frequency_penalties[row].scatter_add_(0, earlier, share)


def presence(original: Original, penalizer: Any) -> None:
    """Hook of BatchedPresencePenalizer._prepare."""
    original(penalizer)
    for row, earlier in _earlier(penalizer):
        penalizer.cumulated_presence_penalties[row, earlier] = penalizer.presence_penalties[row]


def repetition(original: Original, penalizer: Any) -> None:
    """Hook of BatchedRepetitionPenalizer._prepare: the prompt counts too."""
    original(penalizer)
    device = penalizer.cumulated_repetition_penalties.device
    for row, req in enumerate(penalizer.orchestrator.reqs()):
        seen = torch.tensor([*req.origin_input_ids, *req.output_ids], dtype=torch.int64, device=device)
        penalizer.cumulated_repetition_penalties[row, seen] = penalizer.repetition_penalties[row]


def in_order(original: Original, info: Any, logits: Tensor) -> None:
    """Hook of SamplingBatchInfo._apply_pre_grammar_logits_transforms: divide first, then subtract."""
    additive, scaling = info.acc_additive_penalties, info.acc_scaling_penalties
    waiting = info.penalizer_orchestrator
    if waiting and waiting.is_required:
        additive = torch.zeros_like(logits, dtype=torch.float32)
        waiting.accumulate_additive_penalties(additive)
        scaling = waiting.accumulate_scaling_penalties()
    if scaling is not None:
        logits.copy_(torch.where(logits < 0, logits * scaling, logits / scaling))
    if additive is not None:
        logits.add_(additive)


def _earlier(penalizer: Any) -> list[tuple[int, Tensor]]:
    """Return rows and the tokens generated for them before, in this part or an earlier one."""
    reqs = penalizer.orchestrator.reqs()
    known = [(row, [*prior_tokens(req), *req.output_ids]) for row, req in enumerate(reqs)]
    device = penalizer.orchestrator.device
    return [(row, torch.tensor(ids, dtype=torch.int64, device=device)) for row, ids in known if ids]
